package millpond.bench;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;

/** The same for Spark's checkpoints, which use Hadoop's newer interface where a file system has it. */
public class DelayedFiles extends DelegateToFileSystem {
  public DelayedFiles(URI uri, Configuration conf) throws IOException, URISyntaxException {
    super(uri, new DelayedFileSystem(), conf, DelayedFileSystem.SCHEME, false);
  }
}
