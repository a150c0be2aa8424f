import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts words exactly once: arguments are the bootstrap servers, the topics of lines and of counts,
 * and a directory for state. Each count is told, one after the other. Its input is text without
 * punctuation; says "running" when it runs, and ends with status 1 where it gives up.
 */
public final class WordCount {
    public static void main(String[] arguments) throws Exception {
        Properties config = new Properties();
        String connecting = System.getenv("CLIENT_PROPERTIES");
        if (connecting != null) config.putAll(Utils.loadProps(connecting));
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[2] + "-app");
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        config.put(StreamsConfig.STATE_DIR_CONFIG, arguments[3]);
        config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 50);
        config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        String protocol = System.getenv().getOrDefault("GROUP_PROTOCOL", "classic");
        config.put(StreamsConfig.GROUP_PROTOCOL_CONFIG, protocol);
        if (protocol.equals("classic")) {
            config.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6000);
            config.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 500);
        }
        config.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        config.put(StreamsConfig.producerPrefix("max.block.ms"), 120000);

        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[1], Consumed.with(Serdes.String(), Serdes.String()))
                .flatMapValues(line -> java.util.Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                .count(Materialized
                        .<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                        .withKeySerde(Serdes.String())
                        .withValueSerde(Serdes.Long()))
                .toStream()
                .mapValues(String::valueOf)
                .to(arguments[2], Produced.with(Serdes.String(), Serdes.String()));

        KafkaStreams streams = new KafkaStreams(builder.build(), config);
        streams.setStateListener((now, before) -> {
            System.out.println(now.name().toLowerCase());
            if (now == KafkaStreams.State.ERROR) Runtime.getRuntime().halt(1);
        });
        Runtime.getRuntime().addShutdownHook(
                new Thread(() -> streams.close(Duration.ofSeconds(30))));
        streams.start();
        Thread.currentThread().join();
    }
}
