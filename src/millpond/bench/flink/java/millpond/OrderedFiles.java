package millpond;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.api.java.typeutils.ResultTypeQueryable;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.connector.file.src.PendingSplitsCheckpoint;
import org.apache.flink.connector.file.src.assigners.SimpleSplitAssigner;
import org.apache.flink.connector.file.src.enumerate.NonSplittingRecursiveEnumerator;
import org.apache.flink.connector.file.src.impl.StaticFileSplitEnumerator;
import org.apache.flink.core.fs.Path;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.table.data.RowData;

/**
 * Hands whole files to readers in the order of their names. Flink's own source hands them out in the order of a
 * hash set: event time would jump, and rows that no engine should see as late would be.
 */
class OrderedFiles
        implements Source<RowData, FileSourceSplit, PendingSplitsCheckpoint<FileSourceSplit>>,
                ResultTypeQueryable<RowData> {
    private static final long serialVersionUID = 1;

    private final FileSource<RowData> files;
    private final Path path;

    OrderedFiles(FileSource<RowData> files, Path path) {
        this.files = files;
        this.path = path;
    }

    @Override
    public SplitEnumerator<FileSourceSplit, PendingSplitsCheckpoint<FileSourceSplit>> createEnumerator(
            SplitEnumeratorContext<FileSourceSplit> context) throws IOException {
        List<FileSourceSplit> splits =
                new ArrayList<>(
                        new NonSplittingRecursiveEnumerator()
                                .enumerateSplits(new Path[] {path}, context.currentParallelism()));
        // The assigner takes from the end.
        splits.sort(
                Comparator.comparing((FileSourceSplit split) -> split.path().toString()).reversed());
        return assigning(context, splits);
    }

    @Override
    public SplitEnumerator<FileSourceSplit, PendingSplitsCheckpoint<FileSourceSplit>> restoreEnumerator(
            SplitEnumeratorContext<FileSourceSplit> context,
            PendingSplitsCheckpoint<FileSourceSplit> checkpoint) {
        return assigning(context, checkpoint.getSplits());
    }

    private static SplitEnumerator<FileSourceSplit, PendingSplitsCheckpoint<FileSourceSplit>> assigning(
            SplitEnumeratorContext<FileSourceSplit> context, Collection<FileSourceSplit> splits) {
        return new StaticFileSplitEnumerator(context, new SimpleSplitAssigner(splits));
    }

    @Override
    public Boundedness getBoundedness() {
        return Boundedness.BOUNDED;
    }

    @Override
    public SourceReader<RowData, FileSourceSplit> createReader(SourceReaderContext context) {
        return files.createReader(context);
    }

    @Override
    public SimpleVersionedSerializer<FileSourceSplit> getSplitSerializer() {
        return files.getSplitSerializer();
    }

    @Override
    public SimpleVersionedSerializer<PendingSplitsCheckpoint<FileSourceSplit>>
            getEnumeratorCheckpointSerializer() {
        return files.getEnumeratorCheckpointSerializer();
    }

    @Override
    public TypeInformation<RowData> getProducedType() {
        return files.getProducedType();
    }
}
