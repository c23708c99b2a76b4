package brokerless.realtime;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The source and the sink of a pipeline in Spark's real-time mode. The Python process reads and writes the logs.
 *
 * <p>Options: {@code in} and {@code out} (addresses of the sockets), {@code token} and {@code lanes} (their number). Each
 * lane has one task, in which reader and writer share the lane's {@link Bridge}. Spark's offsets only count rows; the
 * progress is in the output's log.
 */
public final class Provider implements TableProvider {
    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        throw new UnsupportedOperationException("Give the schema.");
    }

    @Override
    public boolean supportsExternalMetadata() {
        return true;
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> options) {
        return new BridgeTable(schema);
    }

    @SuppressWarnings("deprecation") // schema(): its replacement needs an internal class
    private record BridgeTable(StructType schema) implements SupportsRead, SupportsWrite {
        @Override
        public String name() {
            return "brokerless-realtime";
        }

        @Override
        public Set<TableCapability> capabilities() {
            return EnumSet.of(
                    TableCapability.MICRO_BATCH_READ,
                    TableCapability.STREAMING_WRITE,
                    TableCapability.ACCEPT_ANY_SCHEMA);
        }

        @Override
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            String[] addresses = {options.get("in"), options.get("out")};
            Stream stream = new Stream(addresses, options.get("token"), options.getInt("lanes", 1));
            return () -> new Scan() {
                @Override
                public StructType readSchema() {
                    return schema;
                }

                @Override
                public MicroBatchStream toMicroBatchStream(String checkpoint) {
                    return stream;
                }
            };
        }

        @Override
        public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
            return new Builder(new Sink(info.schema()));
        }
    }

    // ---- source

    private record Rows(long count) implements PartitionOffset {}

    private static final class AllRows extends Offset {
        private final long count;

        AllRows(long count) {
            this.count = count;
        }

        @Override
        public String json() {
            return Long.toString(count);
        }
    }

    private record Lane(String[] addresses, String token, int number) implements InputPartition {
        @Override
        public String toString() {
            return "Lane[" + number + "]"; // Spark shows it; the token is a secret
        }
    }

    private record Stream(String[] addresses, String token, int lanes)
            implements MicroBatchStream, SupportsRealTimeMode {
        @Override
        public String toString() {
            return "Stream[lanes=" + lanes + "]"; // Spark shows it in plans; the token is a secret
        }

        @Override
        public InputPartition[] planInputPartitions(Offset start) {
            return IntStream.range(0, lanes)
                    .mapToObj(n -> new Lane(addresses, token, n))
                    .toArray(InputPartition[]::new);
        }

        @Override
        public InputPartition[] planInputPartitions(Offset start, Offset end) {
            throw new UnsupportedOperationException("This source runs in real-time mode only.");
        }

        @Override
        public PartitionReaderFactory createReaderFactory() {
            return new Readers();
        }

        @Override
        public Offset initialOffset() {
            return new AllRows(0);
        }

        @Override
        public Offset latestOffset() {
            return new AllRows(0);
        }

        @Override
        public Offset mergeOffsets(PartitionOffset[] offsets) {
            return new AllRows(Arrays.stream(offsets).mapToLong(offset -> ((Rows) offset).count()).sum());
        }

        @Override
        public Offset deserializeOffset(String json) {
            return new AllRows(Long.parseLong(json.trim()));
        }

        @Override
        public void commit(Offset end) {}

        @Override
        public void stop() {}
    }

    private static final class Readers implements PartitionReaderFactory {
        @Override
        public PartitionReader<InternalRow> createReader(InputPartition partition) {
            TaskContext task = TaskContext.get();
            if (task.attemptNumber() > 0) {
                // The rows that the first attempt read from the socket are lost; the next run reads them again.
                throw new IllegalStateException("A task failed and cannot be repeated: start the pipeline again.");
            }
            Writer writer = Writer.CURRENT.get();
            if (writer == null || writer.task != task.taskAttemptId()) {
                throw new IllegalStateException("The transform moves rows between tasks: run it in micro-batches.");
            }
            Lane lane = (Lane) partition;
            try {
                return new Reader(writer.join(Bridge.of(lane.addresses(), lane.token(), lane.number())));
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }

    private static final class Reader implements SupportsRealTimeRead<InternalRow> {
        private static final RecordStatus ROW = RecordStatus.newStatusWithoutArrivalTime(true);
        private static final RecordStatus NONE = RecordStatus.newStatusWithoutArrivalTime(false);
        private final Bridge bridge;

        Reader(Bridge bridge) {
            this.bridge = bridge;
        }

        @Override
        public RecordStatus nextWithTimeout(Long waitMs) throws IOException {
            return bridge.next(waitMs) ? ROW : NONE;
        }

        @Override
        public boolean next() {
            throw new UnsupportedOperationException("This source runs in real-time mode only.");
        }

        @Override
        public InternalRow get() {
            return bridge.get();
        }

        @Override
        public PartitionOffset getOffset() {
            return new Rows(bridge.rowsRead());
        }

        @Override
        public void close() {}
    }

    // ---- sink

    private record Builder(Sink sink) implements WriteBuilder, SupportsStreamingUpdateAsAppend {
        @Override
        public Write build() {
            return new Write() {
                @Override
                public StreamingWrite toStreaming() {
                    return sink;
                }
            };
        }
    }

    private record Sink(StructType schema) implements StreamingWrite {
        @Override
        public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
            return new Writers(schema);
        }

        @Override
        public boolean useCommitCoordinator() {
            return false;
        }

        @Override
        public void commit(long epoch, WriterCommitMessage[] messages) {}

        @Override
        public void abort(long epoch, WriterCommitMessage[] messages) {}
    }

    private record Writers(StructType schema) implements StreamingDataWriterFactory {
        @Override
        public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
            return new Writer(schema, TaskContext.get().taskAttemptId());
        }
    }

    private record Done() implements WriterCommitMessage {}

    private static final class Writer implements DataWriter<InternalRow> {
        /** The writer of this thread's task; Spark creates it before the reader, in the same thread. */
        static final ThreadLocal<Writer> CURRENT = new ThreadLocal<>();

        final long task;
        private final StructType schema;
        private Bridge bridge;

        Writer(StructType schema, long task) {
            this.schema = schema;
            this.task = task;
            CURRENT.set(this);
        }

        Bridge join(Bridge lane) throws IOException {
            bridge = lane;
            lane.attach(schema);
            return lane;
        }

        @Override
        public void write(InternalRow row) throws IOException {
            if (bridge == null) {
                throw new IllegalStateException("The transform moves rows between tasks: run it in micro-batches.");
            }
            bridge.write(row);
        }

        @Override
        public WriterCommitMessage commit() throws IOException {
            if (bridge != null) {
                bridge.flush();
            }
            return new Done();
        }

        @Override
        public void abort() {
            if (bridge != null) {
                bridge.close();
            }
        }

        @Override
        public void close() {
            CURRENT.remove();
        }
    }
}
