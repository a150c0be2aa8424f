import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.connect.data.Date;
import org.apache.kafka.connect.data.Decimal;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.data.Time;
import org.apache.kafka.connect.data.Timestamp;
import org.apache.kafka.connect.data.Values;
import org.apache.kafka.connect.header.ConnectHeaders;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.transforms.Transformation;
import org.apache.kafka.connect.transforms.predicates.Predicate;

/**
 * Kafka Connect's transforms behind a protocol of lines: a request is a JSON object on a line, and
 * its answer is one too.
 *
 * <p>A type is a name, or `{"struct": [[name, type], ...]}`, or `{"array": type}`. In requests a
 * value is plain JSON of its type: floats are text, bytes are base64, times are counts. In answers
 * a value has its type beside it, as `["int32", 5]`; a struct or map is `["struct", {...}]`.
 */
public final class Transforms {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    /** Records that the next calls use. */
    private static List<SinkRecord> loaded = List.of();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode call = JSON.readTree(line);
            ObjectNode answer = JSON.createObjectNode().put("id", call.get("id").asInt());
            try {
                switch (call.get("op").asText()) {
                    case "load" -> {
                        loaded = records(call);
                        answer.put("result", loaded.size());
                    }
                    case "options" -> answer.set("result", options(call));
                    case "matches" -> answer.set("result", matches(call));
                    case "measure" -> answer.put("result", measure(call));
                    default -> answer.set("result", apply(call));
                }
            } catch (Exception error) {
                answer.put("error", error.getClass().getSimpleName());
                answer.put("message", String.valueOf(error.getMessage()));
            }
            answers.println(JSON.writeValueAsString(answer));
        }
    }

    private static <T> T made(JsonNode call, Class<T> kind) throws Exception {
        String name = "org.apache.kafka.connect.transforms." + call.get("type").asText();
        return kind.cast(Class.forName(name).getDeclaredConstructor().newInstance());
    }

    private static Map<String, String> settings(JsonNode call) {
        Map<String, String> found = new HashMap<>();
        call.get("options").properties().forEach(e -> found.put(e.getKey(), e.getValue().asText()));
        return found;
    }

    private static JsonNode options(JsonNode call) throws Exception {
        ObjectNode found = JSON.createObjectNode();
        made(call, Transformation.class)
                .config()
                .configKeys()
                .forEach(
                        (name, key) ->
                                found.put(name, key.hasDefault() ? "" + key.defaultValue : null));
        return found;
    }

    @SuppressWarnings("unchecked")
    private static Transformation<SinkRecord> transform(JsonNode call) throws Exception {
        Transformation<SinkRecord> made = made(call, Transformation.class);
        made.configure(settings(call));
        return made;
    }

    private static JsonNode apply(JsonNode call) throws Exception {
        Transformation<SinkRecord> transform = transform(call);
        ArrayNode results = JSON.createArrayNode();
        for (SinkRecord record : loaded) {
            try {
                results.add(written(transform.apply(record)));
            } catch (RuntimeException error) {
                results.addObject().put("error", error.toString());
            }
        }
        return results;
    }

    @SuppressWarnings("unchecked")
    private static JsonNode matches(JsonNode call) throws Exception {
        Predicate<SinkRecord> predicate = made(call, Predicate.class);
        predicate.configure(settings(call));
        ArrayNode results = JSON.createArrayNode();
        loaded.forEach(record -> results.add(predicate.test(record)));
        return results;
    }

    /** Nanoseconds of CPU for a record, the least of `rounds` passes over the records. */
    private static double measure(JsonNode call) throws Exception {
        Transformation<SinkRecord> transform = transform(call);
        double least = Double.MAX_VALUE;
        long kept = 0;
        for (int round = 0; round < call.get("rounds").asInt(); round++) {
            long began = THREADS.getCurrentThreadCpuTime();
            for (SinkRecord record : loaded) {
                kept += transform.apply(record) == null ? 0 : 1;
            }
            double taken = THREADS.getCurrentThreadCpuTime() - began;
            least = Math.min(least, taken / loaded.size());
        }
        return kept > 0 ? least : Double.NaN;
    }

    private static List<SinkRecord> records(JsonNode call) {
        boolean schemas = call.get("schemas").asBoolean();
        JsonNode keyType = call.get("key_type");
        JsonNode valueType = call.get("value_type");
        Schema keySchema = schemas ? schema(keyType) : null;
        Schema valueSchema = schemas ? schema(valueType) : null;
        List<SinkRecord> records = new ArrayList<>();
        for (JsonNode row : call.get("records")) {
            ConnectHeaders headers = new ConnectHeaders();
            for (JsonNode header : row.get("headers")) {
                headers.addString(header.get(0).asText(), header.get(1).asText());
            }
            JsonNode timestamp = row.get("timestamp");
            records.add(
                    new SinkRecord(
                            row.get("topic").asText(),
                            row.get("partition").asInt(),
                            keySchema,
                            read(keyType, keySchema, row.get("key")),
                            valueSchema,
                            read(valueType, valueSchema, row.get("value")),
                            row.get("offset").asLong(),
                            timestamp.isNull() ? null : timestamp.asLong(),
                            TimestampType.CREATE_TIME,
                            headers));
        }
        return records;
    }

    private static Schema schema(JsonNode type) {
        if (type.has("struct")) {
            SchemaBuilder builder = SchemaBuilder.struct().optional();
            for (JsonNode field : type.get("struct")) {
                builder.field(field.get(0).asText(), schema(field.get(1)));
            }
            return builder.build();
        }
        if (type.has("array")) {
            return SchemaBuilder.array(schema(type.get("array"))).optional().build();
        }
        return switch (type.asText()) {
            case "date" -> Date.builder().optional().build();
            case "time" -> Time.builder().optional().build();
            case "timestamp" -> Timestamp.builder().optional().build();
            case "decimal" -> Decimal.builder(3).optional().build();
            default -> new SchemaBuilder(Schema.Type.valueOf(type.asText().toUpperCase()))
                    .optional()
                    .build();
        };
    }

    private static Object read(JsonNode type, Schema schema, JsonNode value) {
        if (value.isNull()) {
            return null;
        }
        if (type.has("struct")) {
            Struct struct = schema == null ? null : new Struct(schema);
            Map<String, Object> map = new LinkedHashMap<>();
            for (JsonNode field : type.get("struct")) {
                String name = field.get(0).asText();
                Schema of = schema == null ? null : schema.field(name).schema();
                Object found = read(field.get(1), of, value.get(name));
                if (struct == null) {
                    map.put(name, found);
                } else {
                    struct.put(name, found);
                }
            }
            return struct == null ? map : struct;
        }
        if (type.has("array")) {
            List<Object> items = new ArrayList<>();
            Schema of = schema == null ? null : schema.valueSchema();
            value.forEach(item -> items.add(read(type.get("array"), of, item)));
            return items;
        }
        return switch (type.asText()) {
            case "int8" -> (byte) value.asInt();
            case "int16" -> (short) value.asInt();
            case "int32" -> value.asInt();
            case "int64" -> value.asLong();
            case "float32" -> Float.parseFloat(value.asText());
            case "float64" -> Double.parseDouble(value.asText());
            case "boolean" -> value.asBoolean();
            case "string" -> value.asText();
            case "bytes" -> Base64.getDecoder().decode(value.asText());
            case "decimal" -> new BigDecimal(value.asText());
            case "date" -> new java.util.Date(value.asLong() * 86_400_000L);
            default -> new java.util.Date(value.asLong());
        };
    }

    private static JsonNode written(SinkRecord record) {
        if (record == null) {
            return JSON.nullNode();
        }
        ObjectNode found = JSON.createObjectNode().put("topic", record.topic());
        found.set("key", written(record.keySchema(), record.key()));
        found.set("value", written(record.valueSchema(), record.value()));
        ArrayNode headers = found.putArray("headers");
        for (Header header : record.headers()) {
            String text = Values.convertToString(header.schema(), header.value());
            headers.addArray().add(header.key()).add(text);
        }
        return found;
    }

    private static JsonNode written(Schema schema, Object value) {
        if (value == null) {
            return JSON.nullNode();
        }
        ArrayNode found = JSON.createArrayNode();
        if (value instanceof Struct struct) {
            ObjectNode fields = found.add("struct").addObject();
            for (Field field : struct.schema().fields()) {
                fields.set(field.name(), written(field.schema(), struct.get(field)));
            }
        } else if (value instanceof Map<?, ?> map) {
            ObjectNode fields = found.add("struct").addObject();
            map.forEach((name, item) -> fields.set((String) name, written(null, item)));
        } else if (value instanceof List<?> list) {
            Schema of = schema == null ? null : schema.valueSchema();
            ArrayNode items = found.add("array").addArray();
            list.forEach(item -> items.add(written(of, item)));
        } else if (value instanceof java.util.Date date) {
            String name = Optional.ofNullable(schema).map(Schema::name).orElse(Timestamp.LOGICAL_NAME);
            found.add(name.substring(name.lastIndexOf('.') + 1).toLowerCase()).add(date.getTime());
        } else if (value instanceof Boolean flag) {
            found.add("boolean").add(flag);
        } else if (value instanceof String text) {
            found.add("string").add(text);
        } else if (value instanceof byte[] bytes) {
            found.add("bytes").add(Base64.getEncoder().encodeToString(bytes));
        } else if (value instanceof ByteBuffer buffer) {
            found.add("bytes").add(Base64.getEncoder().encodeToString(buffer.array()));
        } else {
            String name =
                    value instanceof BigDecimal
                            ? "decimal"
                            : org.apache.kafka.connect.data.ConnectSchema.schemaType(value.getClass())
                                    .getName();
            found.add(name).add(value.toString());
        }
        return found;
    }

    private Transforms() {}
}
