package millpond.bench;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.util.EnumSet;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Options.ChecksumOpt;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * The same for Spark's checkpoints, which use Hadoop's newer interface where a file system has it. What the interface
 * asks before it creates or renames, a server would look at by itself: it is one request.
 */
public class DelayedFiles extends DelegateToFileSystem {
  private final DelayedFileSystem files;

  public DelayedFiles(URI uri, Configuration conf) throws IOException, URISyntaxException {
    this(uri, new DelayedFileSystem(), conf);
  }

  private DelayedFiles(URI uri, DelayedFileSystem files, Configuration conf)
      throws IOException, URISyntaxException {
    super(uri, files, conf, DelayedFileSystem.SCHEME, false);
    this.files = files;
  }

  @Override
  public FSDataOutputStream createInternal(
      Path path,
      EnumSet<CreateFlag> flags,
      FsPermission permission,
      int bufferSize,
      short replication,
      long blockSize,
      Progressable progress,
      ChecksumOpt checksum,
      boolean createParent)
      throws IOException {
    return files.request(
        () ->
            super.createInternal(
                path,
                flags,
                permission,
                bufferSize,
                replication,
                blockSize,
                progress,
                checksum,
                createParent));
  }

  @Override
  public void renameInternal(Path from, Path to, boolean overwrite) throws IOException {
    files.request(
        () -> {
          super.renameInternal(from, to, overwrite);
          return null;
        });
  }
}
