// Prints record batches as Kafka's own library writes them, a name and hexadecimal bytes on each line: the content of java.txt.
// Run once per release by hand:  java -cp 'JARS/*' GoldenBatches.java > java.txt   (the records are those of ../test_golden.py)

import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.*;

public class GoldenBatches {
    static SimpleRecord[] few() {
        Header[] headers = {new RecordHeader("trace", new byte[] {1, 2, 3}), new RecordHeader("größe", null), new RecordHeader("", new byte[0])};
        return new SimpleRecord[] {
            new SimpleRecord(1700000000000L, "key".getBytes(), "value".getBytes()),
            new SimpleRecord(1700000000005L, null, "no key".getBytes()),
            new SimpleRecord(1699999999000L, "tombstone".getBytes(), null),
            new SimpleRecord(1700000100000L, new byte[0], new byte[0], headers),
        };
    }

    static SimpleRecord[] many() {
        SimpleRecord[] records = new SimpleRecord[300];
        for (int i = 0; i < records.length; i++)
            records[i] = new SimpleRecord(1700000000000L + i * 7, ("key-" + i % 10).getBytes(), "x".repeat(i).getBytes());
        return records;
    }

    static void print(String name, MemoryRecords records) {
        ByteBuffer buffer = records.buffer().duplicate();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        System.out.println(name + " " + HexFormat.of().formatHex(bytes));
    }

    public static void main(String[] arguments) {
        Compression[] codecs = {Compression.NONE, Compression.gzip().build(), Compression.snappy().build(), Compression.lz4().build(), Compression.zstd().build()};
        for (Compression codec : codecs) {
            print("few-" + codec.type().name, MemoryRecords.withRecords(RecordBatch.MAGIC_VALUE_V2, 0L, codec, TimestampType.CREATE_TIME, few()));
            if (codec.type() != CompressionType.NONE)
                print("many-" + codec.type().name, MemoryRecords.withRecords(RecordBatch.MAGIC_VALUE_V2, 0L, codec, TimestampType.CREATE_TIME, many()));
        }
        print("idempotent", MemoryRecords.withIdempotentRecords(RecordBatch.MAGIC_VALUE_V2, 1000L, Compression.NONE, 4242L, (short) 3, 77, 5, few()));
        print("transactional", MemoryRecords.withTransactionalRecords(RecordBatch.MAGIC_VALUE_V2, 1000L, Compression.NONE, 4242L, (short) 3, 77, 5, few()));
        for (ControlRecordType type : new ControlRecordType[] {ControlRecordType.COMMIT, ControlRecordType.ABORT})
            print("end-" + type.name().toLowerCase(), MemoryRecords.withEndTransactionMarker(500L, 1700000000000L, 5, 4242L, (short) 3, new EndTransactionMarker(type, 9)));
        MemoryRecordsBuilder append = MemoryRecords.builder(ByteBuffer.allocate(1000), RecordBatch.MAGIC_VALUE_V2, Compression.NONE, TimestampType.LOG_APPEND_TIME, 20L, 1800000000000L);
        for (SimpleRecord record : few())
            append.append(record);
        print("append-time", append.build());
        ByteBuffer empty = ByteBuffer.allocate(61);
        DefaultRecordBatch.writeEmptyHeader(empty, RecordBatch.MAGIC_VALUE_V2, 4242L, (short) 3, 77, 100L, 109L, 5, TimestampType.CREATE_TIME, 1700000000000L, true, false);
        empty.flip();
        print("empty", MemoryRecords.readableRecords(empty));
    }
}
