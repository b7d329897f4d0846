package org.leaderelection.spring;

import static org.springframework.boot.autoconfigure.condition.SearchStrategy.CURRENT;

import io.micrometer.core.instrument.FunctionCounter;
import io.micrometer.core.instrument.Gauge;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.binder.MeterBinder;
import java.util.function.BiConsumer;
import java.util.function.ToDoubleFunction;
import javax.sql.DataSource;
import org.leaderelection.Elector;
import org.leaderelection.LeaderElection;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.annotation.Qualifier;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnExpression;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.ApplicationEventPublisher;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/** Configures {@link LeaderOnly}, with health, metrics and events. */
@AutoConfiguration
@EnableConfigurationProperties(LeaderElectionProperties.class)
public class LeaderElectionAutoConfiguration {
  private static final String HEALTH =
      "${management.health.leader-election.enabled:${management.health.defaults.enabled:true}}";

  /** Is called by Spring. */
  public LeaderElectionAutoConfiguration() {}

  @Bean
  static LeaderOnlyPostProcessor leaderOnlyPostProcessor(
      ObjectProvider<LeaderElections> elections) {
    return new LeaderOnlyPostProcessor(elections);
  }

  @Bean(destroyMethod = "stop") // all that Spring calls when the context fails after its start
  @ConditionalOnMissingBean(search = CURRENT)
  LeaderElections leaderElections(
      LeaderOnlyPostProcessor methods,
      @Qualifier("leaderElectionDataSource") ObjectProvider<DataSource> own,
      ObjectProvider<DataSource> usual,
      LeaderElectionProperties properties,
      ObjectProvider<LeaderElectionCustomizer> customizers,
      ApplicationEventPublisher events) {
    return new LeaderElections(
        methods.names,
        name -> {
          LeaderElection.Builder election =
              LeaderElection.builder(own.getIfAvailable(usual::getObject), name)
                  .onElected(term -> events.publishEvent(new ElectedEvent(term)))
                  .onOusted((term, reason) -> events.publishEvent(new OustedEvent(term, reason)));
          properties.apply(election);
          customizers.orderedStream().forEach(each -> each.customize(name, election));
          return election.build();
        });
  }

  @Configuration(proxyBeanMethods = false)
  @ConditionalOnClass(name = "io.micrometer.core.instrument.binder.MeterBinder")
  static class Metrics {
    @Bean
    @ConditionalOnMissingBean(name = "leaderElectionMetrics", search = CURRENT)
    MeterBinder leaderElectionMetrics(LeaderElections elections) {
      return registry ->
          elections.electors().keySet().forEach(name -> bind(registry, elections, name));
    }

    private static void bind(MeterRegistry registry, LeaderElections elections, String name) {
      Candidate candidate = elections.candidate(name);
      Gauge.builder("leader.election.leading", candidate, Metrics::leading)
          .tag("election", name)
          .description("1 while this application leads, else 0")
          .register(registry);
      count(registry, candidate, name, "terms", Elector::terms);
      count(registry, candidate, name, "confirmations", Elector::confirmations);
      count(registry, candidate, name, "errors", Elector::errors);
    }

    private static double leading(Candidate candidate) {
      return candidate.elector.health() == Elector.Health.LEADING ? 1 : 0;
    }

    private static void count(
        MeterRegistry registry,
        Candidate candidate,
        String name,
        String what,
        ToDoubleFunction<Elector> counter) {
      FunctionCounter.builder(
              "leader.election." + what, candidate, c -> counter.applyAsDouble(c.elector))
          .tag("election", name)
          .register(registry);
    }
  }

  private static void tell(
      LeaderElections elections, BiConsumer<String, Object> detail, Runnable down) {
    elections
        .electors()
        .forEach(
            (name, elector) -> {
              Elector.Health health = elector.health();
              detail.accept(name, health.toString());
              if (!health.isHealthy()) down.run();
            });
  }

  @Configuration(proxyBeanMethods = false)
  @ConditionalOnClass(name = "org.springframework.boot.actuate.health.HealthIndicator")
  @ConditionalOnExpression(HEALTH)
  static class HealthOfBoot3 {
    @Bean
    @ConditionalOnMissingBean(name = "leaderElectionHealthIndicator", search = CURRENT)
    org.springframework.boot.actuate.health.HealthIndicator leaderElectionHealthIndicator(
        LeaderElections elections) {
      return () -> {
        var health = org.springframework.boot.actuate.health.Health.up();
        tell(elections, health::withDetail, health::down);
        return health.build();
      };
    }
  }

  @Configuration(proxyBeanMethods = false)
  @ConditionalOnClass(name = "org.springframework.boot.health.contributor.HealthIndicator")
  @ConditionalOnExpression(HEALTH)
  static class HealthOfBoot4 {
    @Bean
    @ConditionalOnMissingBean(name = "leaderElectionHealthIndicator", search = CURRENT)
    org.springframework.boot.health.contributor.HealthIndicator leaderElectionHealthIndicator(
        LeaderElections elections) {
      return () -> {
        var health = org.springframework.boot.health.contributor.Health.up();
        tell(elections, health::withDetail, health::down);
        return health.build();
      };
    }
  }
}
