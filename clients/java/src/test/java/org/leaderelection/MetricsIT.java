package org.leaderelection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.micrometer.core.instrument.Meter;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.Tags;
import io.micrometer.core.instrument.Timer;
import io.micrometer.prometheusmetrics.PrometheusConfig;
import io.micrometer.prometheusmetrics.PrometheusMeterRegistry;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Collectors;
import javax.sql.DataSource;
import org.junit.jupiter.api.Test;

/** The metrics of README.md. */
class MetricsIT {
  static Elector measured(DataSource dataSource, String election, MeterRegistry registry) {
    Tags tags = Tags.of("election", election);
    Meter.MeterProvider<Timer> lengths =
        Timer.builder("leader.election.term")
            .tags(tags)
            .serviceLevelObjectives(
                Duration.ofSeconds(1),
                Duration.ofSeconds(10),
                Duration.ofMinutes(1),
                Duration.ofMinutes(10),
                Duration.ofHours(1),
                Duration.ofDays(1))
            .withRegistry(registry);
    AtomicReference<Timer.Sample> length = new AtomicReference<>();
    Elector elector =
        LeaderElection.builder(dataSource, election)
            .onElected(term -> length.set(Timer.start(registry)))
            .onOusted((term, reason) -> length.get().stop(lengths.withTag("reason", "" + reason)))
            .build()
            .newElector();
    registry.gauge(
        "leader.election.leading",
        tags,
        elector,
        e -> e.health() == Elector.Health.LEADING ? 1 : 0);
    registry.more().counter("leader.election.terms", tags, elector, Elector::terms);
    registry.more().counter("leader.election.confirmations", tags, elector, Elector::confirmations);
    registry.more().counter("leader.election.errors", tags, elector, Elector::errors);
    return elector;
  }

  /** Returns the samples by name and labels. */
  private static Map<String, String> scrape(PrometheusMeterRegistry registry, String election) {
    return registry
        .scrape()
        .lines()
        .filter(line -> !line.startsWith("#"))
        .map(line -> line.replace("election=\"" + election + "\"", "E"))
        .collect(
            Collectors.toMap(
                line -> line.substring(0, line.lastIndexOf(' ')),
                line -> line.substring(line.lastIndexOf(' ') + 1)));
  }

  @Test
  void termThatFailsAndOneThatIsResigned() {
    DataSource dataSource = ServerIT.direct();
    var registry = new PrometheusMeterRegistry(PrometheusConfig.DEFAULT);
    String election = "metrics " + System.nanoTime();
    Elector elector = measured(dataSource, election, registry);
    List<Map<String, String>> shown = new ArrayList<>();
    elector.run(
        term -> {
          shown.add(scrape(registry, election));
          if (shown.size() == 1) throw new IllegalStateException("is reported");
          elector.stop();
          Thread.sleep(60_000);
        });
    shown.add(scrape(registry, election));
    Map.of(
            "leading{E}", "1.0 1.0 0.0",
            "terms_total{E}", "1.0 2.0 2.0",
            "errors_total{E}", "0.0 1.0 1.0",
            "term_seconds_bucket{E,reason=\"job failed\",le=\"10.0\"}", "null 1 1",
            "term_seconds_count{E,reason=\"resigned\"}", "null null 1")
        .forEach(
            (name, values) ->
                assertEquals(
                    values,
                    shown.stream()
                        .map(samples -> samples.get("leader_election_" + name))
                        .map(String::valueOf)
                        .collect(Collectors.joining(" ")),
                    () -> name + " in " + shown));
    assertTrue(shown.get(2).containsKey("leader_election_confirmations_total{E}"));
  }
}
