package millpond;

import java.io.FileWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.flink.metrics.Counter;
import org.apache.flink.metrics.Metric;
import org.apache.flink.metrics.MetricConfig;
import org.apache.flink.metrics.MetricGroup;
import org.apache.flink.metrics.reporter.MetricReporter;
import org.apache.flink.metrics.reporter.MetricReporterFactory;
import org.apache.flink.metrics.reporter.Scheduled;

/** Writes how many rows the sources have handed on, one line per sample: epoch milliseconds and rows. */
public class SourceProgress implements MetricReporter, Scheduled {
    /** What `metrics.reporter.*.factory.class` names. */
    public static class Factory implements MetricReporterFactory {
        @Override
        public MetricReporter createMetricReporter(java.util.Properties properties) {
            return new SourceProgress();
        }
    }

    // Counters of sources that have ended stay: their rows still count.
    private final Queue<Counter> counters = new ConcurrentLinkedQueue<>();
    private FileWriter out;

    @Override
    public void open(MetricConfig config) {
        try {
            out = new FileWriter(config.getProperty("path"));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    @Override
    public void notifyOfAddedMetric(Metric metric, String name, MetricGroup group) {
        Map<String, String> variables = group.getAllVariables();
        String operator = variables.getOrDefault("<operator_name>", "");
        if (name.equals("numRecordsOut") && operator.startsWith("Source")) {
            counters.add((Counter) metric);
        }
    }

    @Override
    public void notifyOfRemovedMetric(Metric metric, String name, MetricGroup group) {}

    @Override
    public void report() {
        long rows = 0;
        for (Counter counter : counters) {
            rows += counter.getCount();
        }
        try {
            out.write(System.currentTimeMillis() + " " + rows + "\n");
            out.flush();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    @Override
    public void close() {
        report();
        try {
            out.close();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
