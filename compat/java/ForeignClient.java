import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.internals.AppInfoParser;
import org.apache.kafka.common.utils.Utils;

/**
 * Apache Kafka's Java client behind a line protocol: one JSON call a line on standard input, one
 * JSON answer a line on standard output. See drivers/remote.py for the other side.
 */
public final class ForeignClient {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int WAIT_SECONDS = 20;
    private final Map<Integer, Member> members = new HashMap<>();
    private final Map<Integer, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    private Admin admin;

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ForeignClient client = new ForeignClient();
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
        switch (call.get("op").asText()) {
            case "version": return "kafka-clients " + AppInfoParser.getVersion();
            case "produce": return produce(call);
            case "consume": return consume(call);
            case "member_open": return memberOpen(call);
            case "member_state": return members.get(call.get("member").asInt()).state();
            case "member_records": return members.get(call.get("member").asInt()).seen();
            case "member_close": return members.remove(call.get("member").asInt()).end();
            case "commit": return commit(call);
            case "committed": return committed(call);
            case "offsets_at": return offsetsAt(call);
            case "bounds": return bounds(call, OffsetSpec.earliest(), OffsetSpec.latest());
            case "tiers":
                return bounds(call, OffsetSpec.earliestLocal(), OffsetSpec.latestTiered());
            case "transactional_open": return transactionalOpen(call);
            case "transactional": return transactional(call);
            default: return administer(call);
        }
    }

    private Object administer(JsonNode call) throws Exception {
        Admin admin = admin(call);
        String topic = call.path("topic").asText();
        String group = call.path("group").asText();
        switch (call.get("op").asText()) {
            case "create_topic":
                NewTopic wanted = new NewTopic(topic, call.get("partitions").asInt(), (short) -1);
                Map<String, String> configs = new HashMap<>();
                call.get("configs").properties().forEach(
                        each -> configs.put(each.getKey(), each.getValue().asText()));
                return get(admin.createTopics(List.of(wanted.configs(configs))).all());
            case "delete_topic": return get(admin.deleteTopics(List.of(topic)).all());
            case "topics": return topics(admin);
            case "create_partitions":
                NewPartitions total = NewPartitions.increaseTo(call.get("total").asInt());
                return get(admin.createPartitions(Map.of(topic, total)).all());
            case "configs": {
                ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
                Config found = get(admin.describeConfigs(List.of(resource)).all()).get(resource);
                Map<String, String> values = new TreeMap<>();
                found.entries().forEach(entry -> values.put(entry.name(), entry.value()));
                return values;
            }
            case "alter_config": {
                ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
                ConfigEntry entry =
                        new ConfigEntry(call.get("key").asText(), call.get("value").asText());
                AlterConfigOp set = new AlterConfigOp(entry, AlterConfigOp.OpType.SET);
                return get(admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all());
            }
            case "delete_records": {
                Map<TopicPartition, RecordsToDelete> before = new HashMap<>();
                call.get("offsets").forEach(each -> before.put(
                        new TopicPartition(topic, each.get(0).asInt()),
                        RecordsToDelete.beforeOffset(each.get(1).asLong())));
                return get(admin.deleteRecords(before).all());
            }
            case "groups": {
                List<String> names = new ArrayList<>();
                for (GroupListing each : get(admin.listGroups().all())) names.add(each.groupId());
                return names;
            }
            case "describe_group": {
                ConsumerGroupDescription found =
                        get(admin.describeConsumerGroups(List.of(group)).all()).get(group);
                return List.of(found.groupState().name(), found.members().size());
            }
            case "delete_group": return get(admin.deleteConsumerGroups(List.of(group)).all());
            case "cluster": {
                DescribeClusterResult found = admin.describeCluster();
                return List.of(get(found.clusterId()), get(found.nodes()).size());
            }
            case "log_dirs": return logDirs(admin, topic);
            case "config_topics": {
                Set<String> names = new TreeSet<>();
                Set<ConfigResource.Type> kinds = Set.of(ConfigResource.Type.TOPIC);
                get(admin.listConfigResources(kinds, new ListConfigResourcesOptions()).all())
                        .forEach(each -> names.add(each.name()));
                return names;
            }
            default: throw new IllegalArgumentException("unknown operation " + call.get("op"));
        }
    }

    private static Map<String, Integer> topics(Admin admin) throws Exception {
        Map<String, Integer> counts = new TreeMap<>();
        Set<String> names = get(admin.listTopics().names());
        for (TopicDescription each : get(admin.describeTopics(names).allTopicNames()).values()) {
            counts.put(each.name(), each.partitions().size());
        }
        return counts;
    }

    private static Object logDirs(Admin admin, String topic) throws Exception {
        List<Integer> brokers = new ArrayList<>();
        get(admin.describeCluster().nodes()).forEach(node -> brokers.add(node.id()));
        List<Object> found = new ArrayList<>();
        get(admin.describeLogDirs(brokers).allDescriptions()).values().forEach(
                directories -> directories.values().forEach(
                        directory -> directory.replicaInfos().forEach((partition, replica) -> {
                            if (partition.topic().equals(topic)) {
                                found.add(List.of(partition.partition(), replica.size()));
                            }
                        })));
        return found;
    }

    private Object transactionalOpen(JsonNode call) {
        Properties settings = common(call);
        settings.put("transactional.id", call.get("transactional").asText());
        settings.put("transaction.timeout.ms", call.get("timeout_ms").asText());
        settings.put("max.block.ms", String.valueOf(WAIT_SECONDS * 1000));
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                settings, new ByteArraySerializer(), new ByteArraySerializer());
        try {
            producer.initTransactions();
        } catch (RuntimeException failure) {
            producer.close(Duration.ZERO);
            throw failure;
        }
        int handle = call.get("id").asInt();
        producers.put(handle, producer);
        return handle;
    }

    private Object transactional(JsonNode call) throws Exception {
        KafkaProducer<byte[], byte[]> producer = producers.get(call.get("producer").asInt());
        switch (call.get("does").asText()) {
            case "begin": producer.beginTransaction(); return null;
            case "send": return send(producer, call);
            case "send_offsets": {
                Map<TopicPartition, OffsetAndMetadata> wanted = new HashMap<>();
                call.get("offsets").forEach(each -> wanted.put(
                        new TopicPartition(call.get("topic").asText(), each.get(0).asInt()),
                        new OffsetAndMetadata(each.get(1).asLong())));
                producer.sendOffsetsToTransaction(
                        wanted, new ConsumerGroupMetadata(call.get("group").asText()));
                return null;
            }
            case "commit": producer.commitTransaction(); return null;
            case "abort": producer.abortTransaction(); return null;
            default:
                producers.remove(call.get("producer").asInt());
                producer.close(Duration.ZERO);
                return null;
        }
    }

    private Object produce(JsonNode call) throws Exception {
        Properties settings = common(call);
        settings.put("acks", "all");
        settings.put("compression.type", call.get("codec").asText());
        settings.put("enable.idempotence", call.get("idempotent").asText());
        settings.put("max.in.flight.requests.per.connection", "1"); // order is kept where a leader goes
        settings.put("linger.ms", "5");
        settings.put("max.block.ms", String.valueOf(WAIT_SECONDS * 1000));
        settings.put("delivery.timeout.ms", String.valueOf(WAIT_SECONDS * 1000));
        settings.put("request.timeout.ms", "10000");
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            return send(producer, call);
        }
    }

    private static Object send(KafkaProducer<byte[], byte[]> producer, JsonNode call)
            throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        List<Long> offsets = new ArrayList<>();
        for (JsonNode each : call.get("records")) {
            List<Header> headers = new ArrayList<>();
            each.get("headers").forEach(pair ->
                    headers.add(new RecordHeader(pair.get(0).asText(), bytes(pair.get(1)))));
            sent.add(producer.send(new ProducerRecord<>(
                    call.get("topic").asText(), each.get("partition").asInt(),
                    each.get("timestamp").asLong(), bytes(each.get("key")),
                    bytes(each.get("value")), headers)));
        }
        producer.flush();
        for (Future<RecordMetadata> each : sent) offsets.add(each.get().offset());
        return offsets;
    }

    private Object consume(JsonNode call) {
        List<Object> seen = new ArrayList<>();
        long deadline = System.nanoTime() + call.get("wait_ms").asLong() * 1_000_000L;
        int count = call.get("count").asInt();
        Properties settings = common(call);
        settings.put("isolation.level",
                call.get("committed").asBoolean() ? "read_committed" : "read_uncommitted");
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings)) {
            Map<TopicPartition, Long> starts = new HashMap<>();
            call.get("starts").forEach(each -> starts.put(
                    new TopicPartition(call.get("topic").asText(), each.get(0).asInt()),
                    each.get(1).asLong()));
            consumer.assign(starts.keySet());
            starts.forEach(consumer::seek);
            while (seen.size() < count && System.nanoTime() < deadline) {
                consumer.poll(Duration.ofMillis(100)).forEach(each -> seen.add(record(each)));
            }
        }
        return seen;
    }

    private Object memberOpen(JsonNode call) {
        Properties settings = common(call);
        settings.put("group.id", call.get("group").asText());
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "true");
        settings.put("auto.commit.interval.ms", "200");
        settings.put("group.protocol", call.get("protocol").asText());
        if (call.get("protocol").asText().equals("consumer")) {
            settings.put("group.remote.assignor", call.get("assignor").asText());
        } else {
            settings.put("session.timeout.ms", call.get("session_ms").asText());
            settings.put("heartbeat.interval.ms", call.get("heartbeat_ms").asText());
            settings.put("partition.assignment.strategy", call.get("assignor").asText());
        }
        if (call.hasNonNull("instance")) {
            settings.put("group.instance.id", call.get("instance").asText());
        }
        int handle = call.get("id").asInt();
        members.put(handle, new Member(settings, call.get("topic").asText()));
        return handle;
    }

    private Object commit(JsonNode call) {
        Map<TopicPartition, OffsetAndMetadata> wanted = new HashMap<>();
        call.get("offsets").forEach(each -> wanted.put(
                new TopicPartition(call.get("topic").asText(), each.get(0).asInt()),
                new OffsetAndMetadata(each.get(1).asLong(), each.get(2).asText())));
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(grouped(call))) {
            consumer.assign(wanted.keySet());
            consumer.commitSync(wanted, Duration.ofSeconds(WAIT_SECONDS));
        }
        return null;
    }

    private Object committed(JsonNode call) {
        List<Object> found = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(grouped(call))) {
            consumer.committed(partitions(call), Duration.ofSeconds(WAIT_SECONDS))
                    .forEach((partition, at) -> {
                        if (at != null) {
                            found.add(List.of(partition.partition(), at.offset(), at.metadata()));
                        }
                    });
        }
        return found;
    }

    private Object offsetsAt(JsonNode call) {
        Map<TopicPartition, Long> asked = new HashMap<>();
        partitions(call).forEach(each -> asked.put(each, call.get("timestamp").asLong()));
        List<Object> found = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(common(call))) {
            Map<TopicPartition, OffsetAndTimestamp> answers =
                    consumer.offsetsForTimes(asked, Duration.ofSeconds(WAIT_SECONDS));
            for (TopicPartition each : asked.keySet()) {
                OffsetAndTimestamp at = answers.get(each);
                found.add(List.of(each.partition(), at == null ? -1L : at.offset()));
            }
        }
        return found;
    }

    private Object bounds(JsonNode call, OffsetSpec from, OffsetSpec to) throws Exception {
        Set<TopicPartition> asked = partitions(call);
        Map<TopicPartition, OffsetSpec> first = new HashMap<>();
        Map<TopicPartition, OffsetSpec> last = new HashMap<>();
        asked.forEach(each -> first.put(each, from));
        asked.forEach(each -> last.put(each, to));
        var starts = get(admin(call).listOffsets(first).all());
        var ends = get(admin(call).listOffsets(last).all());
        List<Object> found = new ArrayList<>();
        asked.forEach(each -> found.add(
                List.of(each.partition(), starts.get(each).offset(), ends.get(each).offset())));
        return found;
    }

    private Admin admin(JsonNode call) {
        if (admin == null) {
            Properties settings = common(call);
            settings.put("request.timeout.ms", "10000");
            settings.put("default.api.timeout.ms", String.valueOf(WAIT_SECONDS * 1000));
            admin = Admin.create(settings);
        }
        return admin;
    }

    /** How the client connects: what the file says that the environment names. */
    private static Properties connecting() {
        String path = System.getenv("CLIENT_PROPERTIES");
        try {
            return path == null ? new Properties() : Utils.loadProps(path);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    private static Properties common(JsonNode call) {
        Properties settings = connecting();
        settings.put("bootstrap.servers", call.get("bootstrap").asText());
        settings.put("enable.metrics.push", System.getenv().getOrDefault("METRICS_PUSH", "false"));
        return settings;
    }

    private static Properties grouped(JsonNode call) {
        Properties settings = common(call);
        settings.put("group.id", call.get("group").asText());
        return settings;
    }

    private static KafkaConsumer<byte[], byte[]> consumer(Properties settings) {
        settings.putIfAbsent("enable.auto.commit", "false");
        settings.put("allow.auto.create.topics", "false");
        settings.put("fetch.max.wait.ms", "100");
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static Set<TopicPartition> partitions(JsonNode call) {
        Set<TopicPartition> found = new HashSet<>();
        call.get("partitions").forEach(
                each -> found.add(new TopicPartition(call.get("topic").asText(), each.asInt())));
        return found;
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String text(byte[] value) {
        return value == null ? null : Base64.getEncoder().encodeToString(value);
    }

    private static Map<String, Object> record(ConsumerRecord<byte[], byte[]> each) {
        List<Object> headers = new ArrayList<>();
        each.headers().forEach(header -> headers.add(Arrays.asList(header.key(), text(header.value()))));
        Map<String, Object> found = new HashMap<>();
        found.put("value", text(each.value()));
        found.put("key", text(each.key()));
        found.put("headers", headers);
        found.put("timestamp", each.timestamp());
        found.put("partition", each.partition());
        found.put("offset", each.offset());
        return found;
    }

    private static <T> T get(Future<T> future)
            throws ExecutionException, InterruptedException, TimeoutException {
        return future.get(WAIT_SECONDS + 5, TimeUnit.SECONDS);
    }

    /** A subscribed consumer, polled by a thread of its own. */
    private static final class Member implements ConsumerRebalanceListener, Runnable {
        private final KafkaConsumer<byte[], byte[]> consumer;
        private final List<Object> records = Collections.synchronizedList(new ArrayList<>());
        private final Set<Integer> revoked = Collections.synchronizedSet(new TreeSet<>());
        private final Thread thread = new Thread(this);
        private volatile Set<Integer> owned = Set.of();
        private volatile int rebalances;
        private volatile boolean closing;
        private volatile Throwable failure;

        Member(Properties settings, String topic) {
            consumer = ForeignClient.consumer(settings);
            consumer.subscribe(List.of(topic), this);
            thread.setDaemon(true);
            thread.start();
        }

        @Override
        public void run() {
            try (consumer) {
                while (!closing) {
                    consumer.poll(Duration.ofMillis(50)).forEach(each -> records.add(record(each)));
                    owned = numbers(consumer.assignment());
                }
            } catch (Throwable thrown) {
                failure = thrown;
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            rebalances++;
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            if (!closing && !partitions.isEmpty()) {
                rebalances++;
                revoked.addAll(numbers(partitions));
            }
        }

        Object state() throws Exception {
            if (failure != null) throw new Exception(failure);
            return Map.of("assignment", owned, "rebalances", rebalances,
                    "revoked", new TreeSet<>(revoked));
        }

        Object seen() {
            synchronized (records) {
                return new ArrayList<>(records);
            }
        }

        Object end() throws Exception {
            closing = true;
            thread.join(WAIT_SECONDS * 1000L);
            if (failure != null) throw new Exception(failure);
            return null;
        }

        private static Set<Integer> numbers(Collection<TopicPartition> partitions) {
            Set<Integer> found = new TreeSet<>();
            partitions.forEach(each -> found.add(each.partition()));
            return found;
        }
    }
}
