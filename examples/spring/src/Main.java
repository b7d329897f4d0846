package org.example;

import java.sql.SQLException;
import javax.sql.DataSource;
import org.leaderelection.Term;
import org.leaderelection.spring.LeaderElections;
import org.leaderelection.spring.LeaderOnly;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceUtils;
import org.springframework.scheduling.annotation.EnableScheduling;
import org.springframework.scheduling.annotation.Scheduled;
import org.springframework.transaction.annotation.Transactional;

/** Of any number of copies of this application, the leader's runs the scheduled method. */
@SpringBootApplication
@EnableScheduling
public class Main {
  private final LeaderElections elections;
  private final DataSource dataSource;
  private final JdbcTemplate jdbc;

  Main(LeaderElections elections, DataSource dataSource, JdbcTemplate jdbc) {
    this.elections = elections;
    this.dataSource = dataSource;
    this.jdbc = jdbc;
  }

  public static void main(String[] args) {
    System.setProperty("spring.datasource.url", System.getenv("DATABASE_URL"));
    SpringApplication.run(Main.class, args);
  }

  @Scheduled(fixedDelay = 1000)
  @LeaderOnly("spring")
  @Transactional
  void sendInvoices() throws SQLException {
    Term term = elections.term();
    term.guard(DataSourceUtils.getConnection(dataSource)); // no commit when the term is over
    jdbc.update("INSERT INTO work_done (token) VALUES (?)", term.token());
  }
}
