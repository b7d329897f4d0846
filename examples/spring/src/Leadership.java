package org.example;

import java.util.concurrent.CountDownLatch;
import java.util.function.Consumer;
import javax.sql.DataSource;
import org.leaderelection.Elector;
import org.leaderelection.LeaderElection;
import org.leaderelection.Term;
import org.springframework.boot.actuate.health.Health;
import org.springframework.boot.actuate.health.HealthIndicator;
import org.springframework.context.SmartLifecycle;
import org.springframework.stereotype.Component;

/** Campaigns as long as the application runs. */
@Component
class Leadership implements SmartLifecycle, HealthIndicator {
  private final LeaderElection election;
  private volatile Elector elector;
  private Term term;

  Leadership(DataSource dataSource) {
    election = LeaderElection.of(dataSource, "spring");
  }

  @Override
  public void start() {
    elector = election.newElector();
    new Thread(() -> elector.run(this::lead), "leadership").start();
  }

  @Override
  public void stop() {
    elector.close();
    elector = null;
  }

  @Override
  public boolean isRunning() {
    return elector != null;
  }

  @Override
  public Health health() {
    Elector now = elector;
    Elector.Health health = now == null ? Elector.Health.STOPPED : now.health();
    return (health.isHealthy() ? Health.up() : Health.down()).withDetail("elector", health).build();
  }

  private void lead(Term term) throws InterruptedException {
    set(term);
    try {
      new CountDownLatch(1).await(); // until the term is over
    } finally {
      set(null); // waits for work that has begun
    }
  }

  private synchronized void set(Term term) {
    this.term = term;
  }

  /** Does this work if this copy leads; the term is kept until that is done. */
  synchronized void ifLeading(Consumer<Term> work) {
    if (term != null && term.isLeading()) {
      work.accept(term);
    }
  }
}
