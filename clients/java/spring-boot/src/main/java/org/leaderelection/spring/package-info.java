/**
 * Integrates leader election into Spring Boot: {@link org.leaderelection.spring.LeaderOnly} lets
 * only the leader's copy of an application run a method.
 */
@NullMarked
package org.leaderelection.spring;

import org.jspecify.annotations.NullMarked;
