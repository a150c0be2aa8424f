import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Apache Kafka's command line, one tool after the other in one machine, behind the line protocol of
 * ForeignClient: `main` of a class is called, and its status and what it has printed are told.
 */
public final class Tools {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** What the tool that runs wants to end with; null as long as it has not said so. */
    private static Integer wanted;

    /** A tool wants the machine to end. Some catch it, and end once more. */
    private static final class Ended extends RuntimeException {
        Ended() {
            super(null, null, false, false);
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        Exit.setExitProcedure(Tools::end);
        Exit.setHaltProcedure(Tools::end);
        BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode call = JSON.readTree(line);
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            ByteArrayOutputStream errors = new ByteArrayOutputStream();
            System.setOut(new PrintStream(said, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
            int status = run(call);
            ObjectNode answer = JSON.createObjectNode().put("id", call.get("id").asInt());
            answer.putArray("result")
                    .add(status)
                    .add(said.toString(StandardCharsets.UTF_8))
                    .add(errors.toString(StandardCharsets.UTF_8));
            answers.println(JSON.writeValueAsString(answer));
        }
        System.exit(0);
    }

    private static void end(int status, String message) {
        wanted = wanted == null ? status : wanted;
        throw new Ended();
    }

    private static int run(JsonNode call) {
        String[] arguments = JSON.convertValue(call.get("arguments"), String[].class);
        try {
            Class<?> tool = Class.forName(call.get("tool").asText());
            wanted = null;
            tool.getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException failure) {
            if (!(failure.getCause() instanceof Ended)) {
                failure.getCause().printStackTrace();
                return 1;
            }
        } catch (ReflectiveOperationException failure) {
            failure.printStackTrace();
            return 1;
        }
        return wanted == null ? 0 : wanted;
    }
}
