import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.internals.BufferSupplier;
import org.apache.kafka.common.utils.internals.CloseableIterator;

/**
 * What the consumer of Apache Kafka's Java client reads of batches: each comes on standard input
 * behind its size (four bytes, big endian), and is answered with a line of JSON: the list of its
 * records as [offset, timestamp, key, value], bytes in base64, or the text of the error.
 */
public final class BatchReader {
    public static void main(String[] arguments) throws IOException {
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in, 1 << 16));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        while (true) {
            int size;
            try {
                size = in.readInt();
            } catch (EOFException end) {
                return;
            }
            byte[] data = new byte[size];
            in.readFully(data);
            String answer;
            try {
                answer = records(data);
            } catch (RuntimeException | Error error) {
                String text = String.valueOf(error).replace("\\", "/").replace("\"", "'");
                answer = "\"" + text.replaceAll("\\p{Cntrl}", " ") + "\"";
            }
            out.println(answer);
            if (in.available() == 0) {
                out.flush();
            }
        }
    }

    /** The records of the batches in some bytes, read as `CompletedFetch` does. */
    private static String records(byte[] data) {
        StringBuilder found = new StringBuilder("[");
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(data)).batches()) {
            batch.ensureValid();
            try (CloseableIterator<Record> records =
                    batch.streamingIterator(BufferSupplier.NO_CACHING)) {
                while (records.hasNext()) {
                    Record record = records.next();
                    record.ensureValid();
                    for (Header header : record.headers()) {
                        header.key();
                    }
                    found.append(found.length() == 1 ? "[" : ", [");
                    found.append(record.offset()).append(", ").append(record.timestamp());
                    found.append(", ").append(text(record.key()));
                    found.append(", ").append(text(record.value())).append(']');
                }
            }
        }
        return found.append(']').toString();
    }

    private static String text(ByteBuffer value) {
        if (value == null) {
            return "null";
        }
        byte[] bytes = new byte[value.remaining()];
        value.get(bytes);
        return '"' + Base64.getEncoder().encodeToString(bytes) + '"';
    }
}
