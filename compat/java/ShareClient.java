import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.common.utils.internals.AppInfoParser;

/**
 * Members of share groups by Apache Kafka's Java client, behind the line protocol of ForeignClient.
 */
public final class ShareClient {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int WAIT_SECONDS = 20;
    private final Map<Integer, Member> members = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ShareClient client = new ShareClient();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode call = JSON.readTree(line);
            ObjectNode answer = JSON.createObjectNode().put("id", call.get("id").asInt());
            try {
                answer.set("result", JSON.valueToTree(client.handle(call)));
            } catch (Throwable failure) {
                Throwable cause = failure instanceof ExecutionException ? failure.getCause() : failure;
                Errors error = Errors.forException(cause);
                boolean known = error != Errors.UNKNOWN_SERVER_ERROR;
                answer.put("error", known ? error.name() : cause.getClass().getSimpleName());
                answer.put("message", String.valueOf(cause.getMessage()));
            }
            out.println(JSON.writeValueAsString(answer));
        }
        System.exit(0);
    }

    private Object handle(JsonNode call) throws Exception {
        Member member = members.get(call.path("member").asInt());
        switch (call.get("op").asText()) {
            case "version": return "kafka-clients " + AppInfoParser.getVersion();
            case "open": return open(call);
            case "poll": return member.poll(call.get("ms").asLong());
            case "acknowledge": return member.acknowledge(call);
            case "commit": return member.commit();
            case "lock_timeout": return member.consumer.acquisitionLockTimeoutMs().orElse(-1);
            case "close":
                members.remove(call.get("member").asInt());
                member.consumer.close(Duration.ofSeconds(WAIT_SECONDS));
                return null;
            default: return administer(call);
        }
    }

    private static Properties connecting() throws IOException {
        String path = System.getenv("CLIENT_PROPERTIES");
        return path == null ? new Properties() : Utils.loadProps(path);
    }

    private Object open(JsonNode call) throws IOException {
        Properties settings = connecting();
        settings.put("bootstrap.servers", call.get("bootstrap").asText());
        settings.put("group.id", call.get("group").asText());
        call.get("settings").properties().forEach(
                each -> settings.put(each.getKey(), each.getValue().asText()));
        Member member = new Member(new KafkaShareConsumer<>(
                settings, new ByteArrayDeserializer(), new ByteArrayDeserializer()));
        List<String> topics = new ArrayList<>();
        call.get("topics").forEach(each -> topics.add(each.asText()));
        member.consumer.subscribe(topics);
        members.put(call.get("member").asInt(), member);
        return null;
    }

    private Object administer(JsonNode call) throws Exception {
        Properties settings = connecting();
        settings.put("bootstrap.servers", call.get("bootstrap").asText());
        String group = call.path("group").asText();
        try (Admin admin = Admin.create(settings)) {
            switch (call.get("op").asText()) {
                case "set_group": {
                    List<AlterConfigOp> changes = new ArrayList<>();
                    call.get("configs").properties().forEach(each -> changes.add(new AlterConfigOp(
                            new ConfigEntry(each.getKey(), each.getValue().asText()),
                            AlterConfigOp.OpType.SET)));
                    ConfigResource resource =
                            new ConfigResource(ConfigResource.Type.GROUP, group);
                    return get(admin.incrementalAlterConfigs(Map.of(resource, changes)).all());
                }
                case "groups": {
                    Map<String, String> found = new TreeMap<>();
                    for (GroupListing each : get(admin.listGroups().all())) {
                        found.put(each.groupId(), String.valueOf(each.type().orElse(null)));
                    }
                    return found;
                }
                case "describe": {
                    ShareGroupDescription found =
                            get(admin.describeShareGroups(List.of(group)).all()).get(group);
                    List<Object> held = new ArrayList<>();
                    found.members().forEach(each -> each.assignment().topicPartitions().forEach(
                            one -> held.add(List.of(one.topic(), one.partition()))));
                    return List.of(found.groupState().name(), found.members().size(), held);
                }
                case "offsets": {
                    Map<Integer, Object> found = new TreeMap<>();
                    get(admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec()))
                            .partitionsToOffsetInfo(group)).forEach((partition, info) -> found.put(
                                    partition.partition(), info == null ? null : List.of(
                                            info.startOffset(), info.lag().orElse(-1L))));
                    return found;
                }
                case "set_offset": return get(admin.alterShareGroupOffsets(group, Map.of(
                        new TopicPartition(call.get("topic").asText(), 0),
                        call.get("offset").asLong())).all());
                case "delete_offsets": return get(admin.deleteShareGroupOffsets(
                        group, Set.of(call.get("topic").asText())).all());
                case "delete": return get(admin.deleteShareGroups(List.of(group)).all());
                default: throw new IllegalArgumentException("unknown operation " + call.get("op"));
            }
        }
    }

    private static <T> T get(Future<T> future) throws Exception {
        return future.get(WAIT_SECONDS, TimeUnit.SECONDS);
    }

    /** One member, with the records of its last poll. */
    private static final class Member {
        private final KafkaShareConsumer<byte[], byte[]> consumer;
        private final Map<String, ConsumerRecord<byte[], byte[]>> polled = new LinkedHashMap<>();

        private Member(KafkaShareConsumer<byte[], byte[]> consumer) {
            this.consumer = consumer;
        }

        private Object poll(long ms) {
            polled.clear();
            List<Object> found = new ArrayList<>();
            for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(ms))) {
                polled.put(each.partition() + "-" + each.offset(), each);
                found.add(List.of(each.partition(), each.offset(),
                        new String(each.value(), StandardCharsets.UTF_8),
                        each.deliveryCount().map(Short::intValue).orElse(0)));
            }
            return found;
        }

        private Object acknowledge(JsonNode call) {
            AcknowledgeType type = AcknowledgeType.valueOf(call.get("type").asText());
            call.get("places").forEach(each -> consumer.acknowledge(
                    polled.get(each.get(0).asInt() + "-" + each.get(1).asLong()), type));
            return null;
        }

        private Object commit() {
            List<Object> failed = new ArrayList<>();
            Map<TopicIdPartition, Optional<KafkaException>> results =
                    consumer.commitSync(Duration.ofSeconds(WAIT_SECONDS));
            results.forEach((partition, error) -> error.ifPresent(each -> failed.add(
                    List.of(partition.partition(), Errors.forException(each).name()))));
            return failed;
        }
    }
}
