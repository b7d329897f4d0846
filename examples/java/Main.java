import org.leaderelection.Elector;
import org.leaderelection.LeaderElection;
import org.leaderelection.Term;
import org.postgresql.ds.PGSimpleDataSource;

/** A program of which one copy works at a time: DATABASE_URL=jdbc:postgresql://... java Main. */
public class Main {
  public static void main(String[] args) {
    PGSimpleDataSource dataSource = new PGSimpleDataSource();
    dataSource.setURL(System.getenv("DATABASE_URL"));
    Elector elector = LeaderElection.of(dataSource, "scheduler").newElector();
    Runtime.getRuntime().addShutdownHook(new Thread(elector::close));
    elector.run(Main::job);
  }

  static void job(Term term) throws InterruptedException {
    while (term.isLeading()) {
      System.out.println("leading, token " + term.token());
      Thread.sleep(1000); // the step of the job
    }
  }
}
