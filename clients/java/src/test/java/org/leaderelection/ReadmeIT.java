package org.leaderelection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.Method;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.sql.DataSource;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The programs of README.md are compiled and run. */
class ReadmeIT {
  private static final String IMPORTS =
      "import java.sql.*; import java.time.*; import java.util.*; import javax.sql.DataSource;"
          + " import org.leaderelection.*;\n";

  @TempDir Path folder;

  @Test
  void programsOfReadme() throws Exception {
    String url = Database.jdbcUrl("DATABASE_URL");
    String readme = Files.readString(Path.of("README.md"));
    Matcher blocks = Pattern.compile("```java\n(.*?)```", Pattern.DOTALL).matcher(readme);
    List<Path> sources = new ArrayList<>();
    int snippets = 0;
    while (blocks.find()) {
      String text = blocks.group(1).replace("jdbc:postgresql://db.example/app?user=billing", url);
      String name = "Billing";
      if (!text.contains("class Billing")) {
        name = "Snippet" + snippets++;
        text =
            IMPORTS
                + ("public class " + name + " { public static void run(DataSource dataSource) ")
                + ("throws Exception { Job job = t -> {};\n" + text + "}}");
      }
      sources.add(Files.writeString(folder.resolve(name + ".java"), text));
    }
    assertEquals(5, snippets);
    List<String> arguments = new ArrayList<>(List.of("-Xlint:all,-try", "-Werror"));
    arguments.addAll(List.of("-cp", System.getProperty("java.class.path")));
    sources.forEach(source -> arguments.add(source.toString()));
    assertEquals(
        0,
        ToolProvider.getSystemJavaCompiler()
            .run(null, null, null, arguments.toArray(String[]::new)));
    URL[] path = {folder.toUri().toURL()};
    try (URLClassLoader loader = new URLClassLoader(path, getClass().getClassLoader())) {
      for (int i = 0; i < snippets; i++) {
        Method run = loader.loadClass("Snippet" + i).getMethod("run", DataSource.class);
        run.invoke(null, Database.direct());
      }
      runBilling(loader.loadClass("Billing"));
    }
    Database.noThreads();
  }

  private static void runBilling(Class<?> billing) throws Exception {
    Method main = billing.getMethod("main", String[].class);
    List<Exception> failures = new ArrayList<>();
    Thread program =
        new Thread(
            () -> {
              try {
                main.invoke(null, (Object) new String[0]);
              } catch (ReflectiveOperationException e) {
                failures.add(e);
              }
            });
    program.start();
    Database.eventually(10, "it leads", () -> Database.identity("billing") != null);
    Thread.sleep(200);
    program.interrupt();
    program.join(5000);
    assertFalse(program.isAlive());
    assertEquals(List.of(), failures);
    assertTrue(Database.identity("billing") == null);
  }
}
