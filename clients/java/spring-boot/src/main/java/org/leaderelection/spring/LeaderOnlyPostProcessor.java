package org.leaderelection.spring;

import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;
import org.jspecify.annotations.Nullable;
import org.springframework.aop.framework.autoproxy.AbstractBeanFactoryAwareAdvisingPostProcessor;
import org.springframework.aop.support.AopUtils;
import org.springframework.aop.support.DefaultPointcutAdvisor;
import org.springframework.aop.support.annotation.AnnotationMatchingPointcut;
import org.springframework.beans.factory.BeanFactory;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.config.ConfigurableBeanFactory;
import org.springframework.core.MethodIntrospector;
import org.springframework.core.Ordered;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.core.annotation.AnnotationUtils;

/** Puts a proxy before each bean with a {@link LeaderOnly} method, and notes the elections. */
final class LeaderOnlyPostProcessor extends AbstractBeanFactoryAwareAdvisingPostProcessor
    implements MethodInterceptor {
  private static final long serialVersionUID = 1;

  final transient Set<String> names = ConcurrentHashMap.newKeySet();
  private final transient ObjectProvider<LeaderElections> elections;
  private transient @Nullable ConfigurableBeanFactory factory;

  LeaderOnlyPostProcessor(ObjectProvider<LeaderElections> elections) {
    this.elections = elections;
    advisor =
        new DefaultPointcutAdvisor(
            new AnnotationMatchingPointcut(null, LeaderOnly.class, true), this);
    setProxyTargetClass(true);
    setBeforeExistingAdvisors(true); // such as that of @Transactional
    setOrder(Ordered.LOWEST_PRECEDENCE - 1); // before @Scheduled looks at the bean
  }

  @Override
  public void setBeanFactory(BeanFactory factory) {
    super.setBeanFactory(factory);
    this.factory = (ConfigurableBeanFactory) factory;
  }

  @Override
  public Object postProcessAfterInitialization(Object bean, String name) {
    Class<?> type = AopUtils.getTargetClass(bean);
    if (AnnotationUtils.isCandidateClass(type, LeaderOnly.class)) {
      MethodIntrospector.MetadataLookup<@Nullable LeaderOnly> lookup =
          method -> AnnotatedElementUtils.findMergedAnnotation(method, LeaderOnly.class);
      MethodIntrospector.selectMethods(type, lookup).forEach(this::note);
    }
    return super.postProcessAfterInitialization(bean, name);
  }

  private void note(Method method, LeaderOnly annotation) {
    int modifiers = method.getModifiers();
    boolean proxied = !Modifier.isPrivate(modifiers) && !Modifier.isFinal(modifiers);
    if (!proxied || Modifier.isStatic(modifiers) || method.getReturnType() != void.class) {
      throw new IllegalStateException(
          "@LeaderOnly needs a method that returns void, and is neither private, final nor static: "
              + method);
    }
    names.add(resolve(annotation));
  }

  private String resolve(LeaderOnly annotation) {
    String name = factory == null ? null : factory.resolveEmbeddedValue(annotation.value());
    return name == null ? annotation.value() : name;
  }

  @Override
  public @Nullable Object invoke(MethodInvocation call) throws Throwable {
    Object bean = call.getThis();
    Method method = AopUtils.getMostSpecificMethod(call.getMethod(), bean.getClass());
    LeaderOnly annotation = AnnotatedElementUtils.findMergedAnnotation(method, LeaderOnly.class);
    elections.getObject().candidate(resolve(annotation)).ifLeading(call::proceed);
    return null;
  }
}
