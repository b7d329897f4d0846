package org.leaderelection;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.sql.DataSource;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The programs of README.md are compiled and run. */
class ReadmeIT {
  private static final String HEAD =
      """
      import java.sql.*; import java.time.*; import java.util.concurrent.*; import javax.sql.DataSource;
      import org.leaderelection.*; import org.springframework.scheduling.support.CronExpression;
      public class %s { public static void run(DataSource dataSource) throws Exception {
      """;

  @TempDir Path folder;

  @Test
  void programsOfReadme() throws Exception {
    String readme = Files.readString(Path.of("README.md"));
    Matcher blocks = Pattern.compile("(?<!-->\n)```java\n(.*?)```", Pattern.DOTALL).matcher(readme);
    List<String> names = new ArrayList<>();
    List<String> arguments = new ArrayList<>(List.of("-Xlint:all,-try", "-Werror", "-cp"));
    arguments.add(System.getProperty("java.class.path"));
    while (blocks.find()) {
      String name = names.isEmpty() ? "Billing" : "Snippet" + names.size();
      String url = "jdbc:postgresql://db.example/app?user=billing";
      String program = blocks.group(1).replace(url, ServerIT.url("DATABASE_URL"));
      String text = names.isEmpty() ? program : HEAD.formatted(name) + program + "}}";
      arguments.add(Files.writeString(folder.resolve(name + ".java"), text).toString());
      names.add(name);
    }
    assertEquals(7, names.size());
    String[] options = arguments.toArray(String[]::new);
    assertEquals(0, ToolProvider.getSystemJavaCompiler().run(null, null, null, options));
    URL[] path = {folder.toUri().toURL()};
    try (URLClassLoader loader = new URLClassLoader(path, getClass().getClassLoader())) {
      for (String name : names.subList(1, names.size())) {
        Class<?> snippet = loader.loadClass(name);
        snippet.getMethod("run", DataSource.class).invoke(null, ServerIT.direct());
      }
      Class<?> billing = loader.loadClass("Billing");
      Runnable main =
          () -> {
            try {
              billing.getMethod("main", String[].class).invoke(null, (Object) new String[0]);
            } catch (ReflectiveOperationException e) {
              throw new IllegalStateException(e);
            }
          };
      CompletableFuture<Void> end = new CompletableFuture<>();
      Thread program = new Thread(main);
      program.setUncaughtExceptionHandler((thread, e) -> end.completeExceptionally(e));
      program.start();
      String leads = "SELECT count(*) FROM le_leaders WHERE name = 'billing'";
      UnitTest.until(() -> ServerIT.ask(leads).equals("1"));
      program.interrupt();
      UnitTest.until(() -> ServerIT.ask(leads).equals("0") && !program.isAlive());
      assertEquals(false, end.isCompletedExceptionally());
    }
  }
}
