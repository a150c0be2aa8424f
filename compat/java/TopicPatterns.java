import com.google.re2j.Pattern;
import com.google.re2j.PatternSyntaxException;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * Matches names as Apache Kafka's group coordinator does: each line of standard input is an
 * expression and names, separated by tabs, and is answered with a line: a digit for each name, 1
 * where it matches, or "invalid".
 */
public final class TopicPatterns {
    public static void main(String[] arguments) throws IOException {
        BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(line.split("\t", -1)));
        }
        out.flush();
    }

    private static String answer(String[] words) {
        Pattern pattern;
        try {
            pattern = Pattern.compile(words[0]);
        } catch (PatternSyntaxException error) {
            return "invalid";
        }
        StringBuilder digits = new StringBuilder();
        for (int index = 1; index < words.length; index++) {
            digits.append(pattern.matcher(words[index]).matches() ? '1' : '0');
        }
        return digits.toString();
    }
}
