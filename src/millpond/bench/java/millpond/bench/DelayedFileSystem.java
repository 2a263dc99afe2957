package millpond.bench;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.util.EnumSet;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * The local disk as far away as a benchmark wants it: each request waits before it is served, and the waiting of all
 * threads is counted. A request is what would cross the network once: open, create, rename, delete, list, status, make
 * directories. What one of them asks of another inside is no request of its own, and bytes of an open file are free.
 */
public class DelayedFileSystem extends RawLocalFileSystem {
  public static final String SCHEME = "delayed";
  public static final String LATENCY_MICROS = "fs.delayed.latency.micros";

  private static final AtomicLong WAITED_NANOS = new AtomicLong();
  private static final AtomicLong REQUESTS = new AtomicLong();
  private static final ThreadLocal<Boolean> INSIDE = ThreadLocal.withInitial(() -> false);

  private long latencyNanos;

  /** What all threads have waited for requests. */
  public static long waitedNanos() {
    return WAITED_NANOS.get();
  }

  public static long requests() {
    return REQUESTS.get();
  }

  interface Request<T> {
    T serve() throws IOException;
  }

  <T> T request(Request<T> request) throws IOException {
    if (INSIDE.get()) {
      return request.serve();
    }
    long began = System.nanoTime();
    INSIDE.set(true);
    try {
      for (long left = latencyNanos; left > 0; left = latencyNanos - (System.nanoTime() - began)) {
        LockSupport.parkNanos(left);
      }
      return request.serve();
    } finally {
      INSIDE.set(false);
      REQUESTS.incrementAndGet();
      WAITED_NANOS.addAndGet(System.nanoTime() - began);
    }
  }

  @Override
  public void initialize(URI uri, Configuration conf) throws IOException {
    super.initialize(uri, conf);
    latencyNanos = conf.getLong(LATENCY_MICROS, 0) * 1_000;
  }

  @Override
  public URI getUri() {
    return URI.create(SCHEME + ":///");
  }

  @Override
  public String getScheme() {
    return SCHEME;
  }

  @Override
  public FSDataInputStream open(Path path, int bufferSize) throws IOException {
    return request(() -> super.open(path, bufferSize));
  }

  @Override
  public FSDataOutputStream create(
      Path path,
      boolean overwrite,
      int bufferSize,
      short replication,
      long blockSize,
      Progressable progress)
      throws IOException {
    return request(
        () -> super.create(path, overwrite, bufferSize, replication, blockSize, progress));
  }

  @Override
  public FSDataOutputStream create(
      Path path,
      FsPermission permission,
      boolean overwrite,
      int bufferSize,
      short replication,
      long blockSize,
      Progressable progress)
      throws IOException {
    return request(
        () ->
            super.create(
                path, permission, overwrite, bufferSize, replication, blockSize, progress));
  }

  @Override
  public FSDataOutputStream createNonRecursive(
      Path path,
      FsPermission permission,
      EnumSet<CreateFlag> flags,
      int bufferSize,
      short replication,
      long blockSize,
      Progressable progress)
      throws IOException {
    return request(
        () ->
            super.createNonRecursive(
                path, permission, flags, bufferSize, replication, blockSize, progress));
  }

  @Override
  public boolean rename(Path from, Path to) throws IOException {
    return request(() -> super.rename(from, to));
  }

  @Override
  @SuppressWarnings("deprecation")
  protected void rename(Path from, Path to, Options.Rename... options) throws IOException {
    request(
        () -> {
          super.rename(from, to, options);
          return null;
        });
  }

  @Override
  public boolean delete(Path path, boolean recursive) throws IOException {
    return request(() -> super.delete(path, recursive));
  }

  @Override
  public FileStatus[] listStatus(Path path) throws IOException {
    return request(() -> super.listStatus(path));
  }

  @Override
  public FileStatus getFileStatus(Path path) throws IOException {
    return request(() -> super.getFileStatus(path));
  }

  @Override
  public FileStatus getFileLinkStatus(Path path) throws IOException {
    return request(() -> super.getFileLinkStatus(path));
  }

  @Override
  public boolean mkdirs(Path path) throws IOException {
    return request(() -> super.mkdirs(path));
  }

  @Override
  public boolean mkdirs(Path path, FsPermission permission) throws IOException {
    return request(() -> super.mkdirs(path, permission));
  }

  /** The local file system starts a process for this, which no remote one does. */
  @Override
  public void setPermission(Path path, FsPermission permission) {}

  @Override
  public boolean exists(Path path) throws IOException {
    try {
      getFileStatus(path);
      return true;
    } catch (FileNotFoundException error) {
      return false;
    }
  }
}
