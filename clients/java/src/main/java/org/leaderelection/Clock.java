package org.leaderelection;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;

/**
 * A clock that goes on while the machine is suspended, where there is one: Java has no call for
 * {@code CLOCK_BOOTTIME}, but Linux tells it in a file, in hundredths of a second.
 */
final class Clock {
  private static final RandomAccessFile UPTIME = open();

  private Clock() {}

  private static RandomAccessFile open() {
    try {
      RandomAccessFile file = new RandomAccessFile("/proc/uptime", "r");
      read(file);
      return file;
    } catch (IOException | RuntimeException e) {
      return null;
    }
  }

  private static long read(RandomAccessFile file) throws IOException {
    byte[] text = new byte[64];
    int length;
    synchronized (file) {
      file.seek(0);
      length = file.read(text);
    }
    String uptime = new String(text, 0, length, StandardCharsets.US_ASCII);
    return (long) (Double.parseDouble(uptime.substring(0, uptime.indexOf(' '))) * 1e9);
  }

  /** Returns the time in nanoseconds. */
  static long now() {
    try {
      return UPTIME == null ? System.nanoTime() : read(UPTIME);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }
}
