// Spring Cloud Stream's client of Confluent's schema registry: registers a schema, and fetches it.

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.LinkedHashMap;
import java.util.Map;
import org.springframework.cloud.stream.schema.registry.SchemaNotFoundException;
import org.springframework.cloud.stream.schema.registry.SchemaReference;
import org.springframework.cloud.stream.schema.registry.SchemaRegistrationResponse;
import org.springframework.cloud.stream.schema.registry.client.ConfluentSchemaRegistryClient;

public class SpringRegistry {
    public static void main(String[] arguments) throws Exception {
        ConfluentSchemaRegistryClient client = new ConfluentSchemaRegistryClient();
        client.setEndpoint(arguments[0]);
        SchemaRegistrationResponse made = client.register(arguments[1], "avro", arguments[2]);
        SchemaReference reference = made.getSchemaReference();
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("id", made.getId());
        found.put("version", reference.getVersion());
        found.put("by_id", client.fetch(made.getId()));
        found.put("by_reference", client.fetch(reference));
        try {
            client.fetch(Integer.MAX_VALUE);
        } catch (SchemaNotFoundException error) {
            found.put("missing", true);
        }
        System.out.println(new ObjectMapper().writeValueAsString(found));
    }
}
