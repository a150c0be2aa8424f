import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.avro.NameValidator;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;

/**
 * Answers questions about Avro schemas with Avro's own library. Each line of standard input is a
 * JSON array: "parse" and the texts of schemas in order of their dependencies, or "check" and the
 * texts of a reader's and a writer's schema. Each answer is a line with a JSON object.
 */
public final class AvroReference {
    private static final ObjectMapper MAPPER = new ObjectMapper();

    public static void main(String[] arguments) throws IOException {
        BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = MAPPER.createObjectNode();
            try {
                answer(MAPPER.readTree(line), answer);
            } catch (RuntimeException | StackOverflowError error) {
                answer.put("error", String.valueOf(error));
            }
            out.println(MAPPER.writeValueAsString(answer));
            out.flush();
        }
    }

    private static void answer(JsonNode question, ObjectNode answer) {
        if (question.get(0).asText().equals("parse")) {
            Schema.Parser parser = new Schema.Parser(NameValidator.STRICT_VALIDATOR);
            Schema schema = null;
            for (int index = 1; index < question.size(); index++) {
                schema = parser.parse(question.get(index).asText());
            }
            answer.put("text", schema.toString());
        } else {
            check(schema(question.get(1)), schema(question.get(2)), answer);
        }
    }

    private static Schema schema(JsonNode text) {
        return new Schema.Parser(NameValidator.STRICT_VALIDATOR).parse(text.asText());
    }

    private static void check(Schema reader, Schema writer, ObjectNode answer) {
        SchemaCompatibility.SchemaCompatibilityResult result =
                SchemaCompatibility.checkReaderWriterCompatibility(reader, writer).getResult();
        answer.put("verdict", result.getCompatibility().name());
        ArrayNode problems = answer.putArray("problems");
        for (SchemaCompatibility.Incompatibility problem : result.getIncompatibilities()) {
            problems.addArray().add(problem.getType().name()).add(problem.getLocation());
        }
    }
}
