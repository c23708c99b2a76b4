package brokerless.realtime;

import java.io.EOFException;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorLoader;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.VectorUnloader;
import org.apache.arrow.vector.ipc.ReadChannel;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.IpcOption;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * The two sockets of one lane, Unix or TCP: the Python process sends rows on one, and this class returns the transform's
 * results on the other.
 *
 * <p>Rows arrive in numbered groups ("chunks"). When all rows of a chunk were read and their results were written, the
 * chunk's number is sent as a mark after those results. This is exact because a task reads row by row, and no operator
 * that Spark allows in real-time mode buffers rows.
 *
 * <p>A lane exists longer than its tasks: each real-time batch starts new tasks, which continue where the last ones
 * stopped, even in the middle of a chunk.
 *
 * <p>The frames (little-endian; brokerless/spark/realtime/frames.py is the other side):
 *
 * <ul>
 *   <li>in: {@code kind u8, pad[3], rows u32, chunk u64}, then for 'B' (rows) and 'S' (their schema) an Arrow IPC
 *       message, for 'X' (end after an error) {@code rows} bytes of UTF-8
 *   <li>out: {@code kind u8, pad[3], marks u32, rows u32, pad u32, length u64}, then {@code marks} times {@code chunk
 *       u64, rows u64} (the number of the frame's rows before the mark), then {@code length} bytes of Arrow IPC
 * </ul>
 */
final class Bridge {
    private static final ConcurrentHashMap<String, Bridge> OPEN = new ConcurrentHashMap<>();
    private static final int IN_HEADER = 16;
    private static final int OUT_HEADER = 24;
    private static final int WAITING_FRAMES = 8;

    /** The number of rows with which a frame is sent, even if more input is waiting. */
    private static final int FLUSH_ROWS = 16_384;

    private static final Frame ENDED = new Frame();

    private final String key;
    private final SocketChannel in;
    private final SocketChannel out;
    private final BufferAllocator allocator;
    private final ArrayBlockingQueue<Frame> arrived = new ArrayBlockingQueue<>(WAITING_FRAMES);
    private final Thread receiver;
    private volatile Throwable failure;

    // The state of the input.
    private VectorLoader loader;
    private ColumnarBatch batch;
    private Frame current;
    private int row;
    private long rowsRead;

    // The state of the output.
    private ArrowWriter writer;
    private VectorUnloader unloader;
    private int buffered;
    private final List<long[]> marks = new ArrayList<>();

    private static final class Frame {
        int rows;
        long chunk;
        ArrowRecordBatch data;
        Schema schema;
    }

    /**
     * The bridge of a lane, connected on first use.
     *
     * @param addresses of the two sockets, "in" and "out": a path, or host:port
     * @param token what the Python process asks for before it lets a lane in, in hexadecimal digits
     */
    static Bridge of(String[] addresses, String token, int lane) throws IOException {
        synchronized (OPEN) {
            String key = addresses[0] + "#" + lane;
            Bridge bridge = OPEN.get(key);
            if (bridge == null) {
                bridge = new Bridge(key, addresses, HexFormat.of().parseHex(token), lane);
                OPEN.put(key, bridge);
            }
            return bridge;
        }
    }

    private Bridge(String key, String[] addresses, byte[] token, int lane) throws IOException {
        this.key = key;
        out = connect(addresses[1], token, lane);
        in = connect(addresses[0], token, lane);
        allocator = ArrowUtils.rootAllocator().newChildAllocator("brokerless-" + key, 0, Long.MAX_VALUE);
        receiver = new Thread(this::receive, "brokerless-lane-" + lane);
        receiver.setDaemon(true);
        receiver.start();
    }

    private static SocketChannel connect(String address, byte[] token, int lane) throws IOException {
        SocketChannel channel;
        if (address.startsWith("/")) {
            channel = SocketChannel.open(UnixDomainSocketAddress.of(address));
        } else {
            int colon = address.lastIndexOf(':');
            int port = Integer.parseInt(address.substring(colon + 1));
            channel = SocketChannel.open(new InetSocketAddress(address.substring(0, colon), port));
            channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        }
        ByteBuffer hello = littleEndian(token.length + 4).put(token).putInt(lane).flip();
        while (hello.hasRemaining()) {
            channel.write(hello);
        }
        return channel;
    }

    private static ByteBuffer littleEndian(int size) {
        return ByteBuffer.allocate(size).order(ByteOrder.LITTLE_ENDIAN);
    }

    // ---- input

    private void receive() {
        try (ReadChannel channel = new ReadChannel(in)) {
            while (true) {
                arrived.put(frame(channel));
            }
        } catch (Throwable error) {
            failure = error;
            try {
                arrived.put(ENDED);
            } catch (InterruptedException interrupted) {
                // the lane is closed and has no reader
            }
        }
    }

    private Frame frame(ReadChannel channel) throws IOException {
        ByteBuffer header = littleEndian(IN_HEADER);
        if (channel.readFully(header) < IN_HEADER) {
            throw new EOFException("the Python process ended");
        }
        header.flip();
        int kind = header.getInt() & 0xff;
        Frame frame = new Frame();
        frame.rows = header.getInt();
        frame.chunk = header.getLong();
        switch (kind) {
            case 'B' -> frame.data = MessageSerializer.deserializeRecordBatch(channel, allocator);
            case 'S' -> frame.schema = MessageSerializer.deserializeSchema(channel);
            default -> throw new IOException("unknown frame " + kind);
        }
        return frame;
    }

    /** Moves to the next row; returns false if none arrived in time. */
    boolean next(long waitMs) throws IOException {
        if (current != null) {
            if (++row < current.rows) {
                return true;
            }
            passed();
        }
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(waitMs);
        while (true) {
            Frame frame = arrived.poll();
            if (frame == null) {
                flush(); // no input is waiting, so send the finished results now
                frame = await(end);
                if (frame == null) {
                    return false;
                }
            }
            if (frame == ENDED) {
                arrived.offer(ENDED); // for the next task
                throw new IOException("brokerless bridge: " + failure.getMessage(), failure);
            }
            if (frame.schema != null) {
                open(frame.schema);
                continue;
            }
            loader.load(frame.data);
            frame.data.close();
            batch.setNumRows(frame.rows);
            current = frame;
            row = 0;
            rowsRead += frame.rows;
            return true;
        }
    }

    private Frame await(long end) throws IOException {
        try {
            return arrived.poll(Math.max(0, end - System.nanoTime()), TimeUnit.NANOSECONDS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted", error);
        }
    }

    InternalRow get() {
        return batch.getRow(row);
    }

    long rowsRead() {
        return rowsRead;
    }

    private void open(Schema schema) {
        VectorSchemaRoot root = VectorSchemaRoot.create(schema, allocator);
        loader = new VectorLoader(root);
        List<FieldVector> vectors = root.getFieldVectors();
        batch = new ColumnarBatch(vectors.stream().map(ArrowColumnVector::new).toArray(ColumnVector[]::new));
    }

    /** Records that all rows of the current chunk were read and their results written. */
    private void passed() throws IOException {
        marks.add(new long[] {current.chunk, buffered});
        current = null;
        if (buffered >= FLUSH_ROWS) {
            flush();
        }
    }

    // ---- output

    /** Sends the schema of the results; it must be the same in every batch. */
    void attach(StructType schema) throws IOException {
        Schema arrow = ArrowUtils.toArrowSchema(schema, "UTC", true, false);
        if (writer == null) {
            writer = ArrowWriter.create(schema, "UTC", true, false);
            unloader = new VectorUnloader(writer.root());
            send('S', MessageSerializer.serializeMetadata(arrow, IpcOption.DEFAULT), null);
        } else if (!writer.root().getSchema().equals(arrow)) {
            throw new IllegalStateException("The transform's columns changed between two batches.");
        }
    }

    void write(InternalRow value) throws IOException {
        writer.write(value);
        if (++buffered >= 4 * FLUSH_ROWS) {
            flush(); // in the middle of a chunk from which the transform makes many rows
        }
    }

    void flush() throws IOException {
        if (buffered > 0) {
            writer.finish();
            try (ArrowRecordBatch data = unloader.getRecordBatch()) {
                send('B', MessageSerializer.serializeMetadata(data, IpcOption.DEFAULT), data);
            }
            writer.reset();
        } else if (!marks.isEmpty()) {
            send('B', null, null);
        }
        buffered = 0;
        marks.clear();
    }

    private void send(int kind, ByteBuffer metadata, ArrowRecordBatch data) throws IOException {
        long body = data == null ? 0 : data.computeBodyLength();
        // An IPC message: a continuation and its length (4 bytes each), the metadata padded to 8 bytes, the body.
        long length = metadata == null ? 0 : 8 + (metadata.remaining() + 7L) / 8 * 8 + body;
        ByteBuffer head = littleEndian(OUT_HEADER + 16 * marks.size());
        head.putInt(kind).putInt(marks.size()).putInt(buffered).putInt(0).putLong(length);
        for (long[] mark : marks) {
            head.putLong(mark[0]).putLong(mark[1]);
        }
        WriteChannel channel = new WriteChannel(out);
        channel.write(head.flip());
        if (metadata != null) {
            MessageSerializer.writeMessageBuffer(channel, metadata.remaining(), metadata);
        }
        if (data != null) {
            MessageSerializer.writeBatchBuffers(channel, data);
        }
    }

    /** Closes the lane; the next run continues after the position in the output's log. */
    void close() {
        OPEN.remove(key, this);
        try (in;
                out) {
            receiver.interrupt();
        } catch (IOException ignored) {
            // the socket is not used any more
        }
    }
}
