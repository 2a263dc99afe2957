package millpond;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.flink.api.common.serialization.BulkWriter;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.ReadableConfig;
import org.apache.flink.connector.file.table.factories.BulkWriterFormatFactory;
import org.apache.flink.core.fs.FSDataOutputStream;
import org.apache.flink.formats.parquet.ParquetFileFormatFactory;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.format.EncodingFormat;
import org.apache.flink.table.connector.sink.DynamicTableSink;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.utils.JoinedRowData;
import org.apache.flink.table.factories.DynamicTableFactory;
import org.apache.flink.table.types.DataType;

/**
 * The format `changelog-parquet`: Parquet with the kind of change in a last column, so that the file system sink
 * takes upserts. Flink's own Parquet takes only inserts, and its formats that take changes are JSON.
 */
public class ChangelogParquetFactory implements BulkWriterFormatFactory {
    static final String KIND = "__kind";

    private final ParquetFileFormatFactory parquet = new ParquetFileFormatFactory();

    @Override
    public String factoryIdentifier() {
        return "changelog-parquet";
    }

    @Override
    public Set<ConfigOption<?>> requiredOptions() {
        return parquet.requiredOptions();
    }

    @Override
    public Set<ConfigOption<?>> optionalOptions() {
        return parquet.optionalOptions();
    }

    @Override
    public EncodingFormat<BulkWriter.Factory<RowData>> createEncodingFormat(
            DynamicTableFactory.Context context, ReadableConfig options) {
        EncodingFormat<BulkWriter.Factory<RowData>> rows = parquet.createEncodingFormat(context, options);
        return new EncodingFormat<>() {
            @Override
            public BulkWriter.Factory<RowData> createRuntimeEncoder(
                    DynamicTableSink.Context sink, DataType type) {
                List<DataTypes.Field> fields = new ArrayList<>(DataType.getFields(type));
                fields.add(DataTypes.FIELD(KIND, DataTypes.TINYINT().notNull()));
                DataType withKind = DataTypes.ROW(fields).notNull().bridgedTo(RowData.class);
                return new WriterFactory(rows.createRuntimeEncoder(sink, withKind));
            }

            @Override
            public ChangelogMode getChangelogMode() {
                return ChangelogMode.upsert();
            }
        };
    }

    private static class WriterFactory implements BulkWriter.Factory<RowData> {
        private static final long serialVersionUID = 1;

        private final BulkWriter.Factory<RowData> rows;

        WriterFactory(BulkWriter.Factory<RowData> rows) {
            this.rows = rows;
        }

        @Override
        public BulkWriter<RowData> create(FSDataOutputStream out) throws IOException {
            return new Writer(rows.create(out));
        }
    }

    private static class Writer implements BulkWriter<RowData> {
        private final BulkWriter<RowData> rows;
        private final GenericRowData kind = new GenericRowData(1);
        private final JoinedRowData withKind = new JoinedRowData();

        Writer(BulkWriter<RowData> rows) {
            this.rows = rows;
        }

        @Override
        public void addElement(RowData row) throws IOException {
            kind.setField(0, row.getRowKind().toByteValue());
            rows.addElement(withKind.replace(row, kind));
        }

        @Override
        public void flush() throws IOException {
            rows.flush();
        }

        @Override
        public void finish() throws IOException {
            rows.finish();
        }
    }
}
