package org.leaderelection.spring;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * Lets a method run only while this application leads an election: else, a call returns at once.
 * Use it beside {@code @Scheduled}. When the term is over or in doubt, and when the application
 * stops, the thread that runs the method is interrupted. Leadership is resigned after the method
 * has returned.
 *
 * <p>The method is called through a proxy of its bean, so it must neither be private nor final, and
 * it must return void. It can be a method of an interface or a class that the bean inherits.
 */
@Documented
@Target(ElementType.METHOD)
@Retention(RetentionPolicy.RUNTIME)
public @interface LeaderOnly {
  /**
   * Names the election. Can have placeholders, such as {@code ${name}}.
   *
   * @return the name of the election
   */
  String value();
}
