package org.leaderelection;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.io.UncheckedIOException;

/**
 * A clock that goes on while the machine is suspended, where there is one: Java has no call for
 * {@code CLOCK_BOOTTIME}, but Linux tells it in a file, in hundredths of a second.
 */
final class Clock {
  private static final RandomAccessFile UPTIME = open();

  private Clock() {}

  private static RandomAccessFile open() {
    try {
      return new RandomAccessFile("/proc/uptime", "r");
    } catch (IOException e) {
      return null;
    }
  }

  /** Returns the time in seconds. */
  static synchronized double now() {
    if (UPTIME == null) return System.nanoTime() / 1e9;
    try {
      byte[] text = new byte[64];
      UPTIME.seek(0);
      return Double.parseDouble(new String(text, 0, UPTIME.read(text)).split(" ")[0]);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }
}
