package org.example;

import org.leaderelection.Term;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.jdbc.core.ConnectionCallback;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.scheduling.annotation.EnableScheduling;
import org.springframework.scheduling.annotation.Scheduled;
import org.springframework.transaction.support.TransactionTemplate;

/** Of any number of copies of this application, the leader's runs the scheduled method. */
@SpringBootApplication
@EnableScheduling
public class Main {
  private final Leadership leadership;
  private final JdbcTemplate jdbc;
  private final TransactionTemplate transaction;

  Main(Leadership leadership, JdbcTemplate jdbc, TransactionTemplate transaction) {
    this.leadership = leadership;
    this.jdbc = jdbc;
    this.transaction = transaction;
  }

  public static void main(String[] args) {
    System.setProperty("spring.datasource.url", System.getenv("DATABASE_URL"));
    SpringApplication.run(Main.class, args);
  }

  @Scheduled(fixedDelay = 1000)
  void sendInvoices() {
    leadership.ifLeading(term -> transaction.executeWithoutResult(status -> sendInvoices(term)));
  }

  private void sendInvoices(Term term) {
    // the transaction cannot commit when the term is over
    ConnectionCallback<Void> guard =
        connection -> {
          term.guard(connection);
          return null;
        };
    jdbc.execute(guard);
    jdbc.update("INSERT INTO work_done (token) VALUES (?)", term.token());
  }
}
