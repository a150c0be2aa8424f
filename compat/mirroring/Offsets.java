import java.time.Duration;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/** Prints the offsets of a group as MirrorMaker's client class translates them: one line each. */
public final class Offsets {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> properties = Map.of(
            "bootstrap.servers", arguments[0],
            "replication.policy.class", arguments[3]);
        Map<TopicPartition, OffsetAndMetadata> found = RemoteClusterUtils.translateOffsets(
            properties, arguments[1], arguments[2], Duration.ofSeconds(30));
        Map<String, Long> sorted = new TreeMap<>();
        found.forEach((place, offset) -> sorted.put(place.toString(), offset.offset()));
        sorted.forEach((place, offset) -> System.out.println(place + " " + offset));
    }
}
