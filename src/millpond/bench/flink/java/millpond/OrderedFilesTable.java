package millpond;

import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.table.FileSystemTableSource;
import org.apache.flink.core.fs.Path;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.connector.source.ScanTableSource;
import org.apache.flink.table.connector.source.SourceProvider;
import org.apache.flink.table.connector.source.abilities.SupportsProjectionPushDown;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.types.DataType;

/** Reads like Flink's own table of files, columns that no one asks for left out, with another order of files. */
class OrderedFilesTable implements ScanTableSource, SupportsProjectionPushDown {
    private final FileSystemTableSource files;
    private final Path path;

    OrderedFilesTable(FileSystemTableSource files, Path path) {
        this.files = files;
        this.path = path;
    }

    @Override
    @SuppressWarnings("unchecked")
    public ScanRuntimeProvider getScanRuntimeProvider(ScanContext context) {
        SourceProvider provider = (SourceProvider) files.getScanRuntimeProvider(context);
        return SourceProvider.of(new OrderedFiles((FileSource<RowData>) provider.createSource(), path));
    }

    @Override
    public ChangelogMode getChangelogMode() {
        return files.getChangelogMode();
    }

    @Override
    public boolean supportsNestedProjection() {
        return files.supportsNestedProjection();
    }

    @Override
    public void applyProjection(int[][] fields, DataType producedType) {
        files.applyProjection(fields, producedType);
    }

    @Override
    public DynamicTableSource copy() {
        return new OrderedFilesTable(files.copy(), path);
    }

    @Override
    public String asSummaryString() {
        return "OrderedFiles";
    }
}
