package millpond;

import java.util.List;
import org.apache.flink.configuration.ReadableConfig;
import org.apache.flink.connector.file.table.FileSystemConnectorOptions;
import org.apache.flink.connector.file.table.FileSystemTableFactory;
import org.apache.flink.connector.file.table.FileSystemTableSource;
import org.apache.flink.connector.file.table.factories.BulkReaderFormatFactory;
import org.apache.flink.core.fs.Path;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.factories.FactoryUtil;

/** The connector `ordered-files`: Flink's `filesystem` source, but files are taken in the order of their names. */
public class OrderedFilesFactory extends FileSystemTableFactory {
    @Override
    public String factoryIdentifier() {
        return "ordered-files";
    }

    @Override
    public DynamicTableSource createDynamicTableSource(Context context) {
        FactoryUtil.TableFactoryHelper helper = FactoryUtil.createTableFactoryHelper(this, context);
        validate(helper);
        ReadableConfig options = helper.getOptions();
        FileSystemTableSource files =
                new FileSystemTableSource(
                        context.getObjectIdentifier(),
                        context.getPhysicalRowDataType(),
                        List.of(),
                        options,
                        discoverDecodingFormat(context, BulkReaderFormatFactory.class),
                        null);
        return new OrderedFilesTable(files, new Path(options.get(FileSystemConnectorOptions.PATH)));
    }
}
