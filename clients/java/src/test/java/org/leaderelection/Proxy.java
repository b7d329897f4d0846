package org.leaderelection;

import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

/** Forwards to a server, until it stalls: then it accepts, and forwards nothing. */
final class Proxy implements AutoCloseable {
  private final ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
  private final List<Socket> sockets = new CopyOnWriteArrayList<>();
  private final int port;
  private volatile boolean stalled;

  Proxy(int port) throws IOException {
    this.port = port;
    thread(this::accept);
  }

  int port() {
    return listener.getLocalPort();
  }

  synchronized void stall(boolean now) {
    stalled = now;
    notifyAll();
  }

  private static void thread(Runnable run) {
    Thread thread = new Thread(run, "proxy");
    thread.setDaemon(true);
    thread.start();
  }

  private void accept() {
    try {
      while (true) {
        Socket near = listener.accept();
        sockets.add(near);
        thread(() -> join(near));
      }
    } catch (IOException e) {
      // closed
    }
  }

  private void join(Socket near) {
    try {
      whole();
      Socket far = new Socket(InetAddress.getLoopbackAddress(), port);
      sockets.add(far);
      thread(() -> forward(far, near));
      forward(near, far);
    } catch (IOException e) {
      // closed
    }
  }

  private void forward(Socket from, Socket to) {
    byte[] buffer = new byte[8192];
    try (from;
        to) {
      InputStream in = from.getInputStream();
      for (int n = in.read(buffer); n >= 0; n = in.read(buffer)) {
        whole();
        to.getOutputStream().write(buffer, 0, n);
      }
      whole();
    } catch (IOException e) {
      // closed
    }
  }

  private synchronized void whole() {
    try {
      while (stalled) {
        wait();
      }
    } catch (InterruptedException e) {
      throw new IllegalStateException(e);
    }
  }

  @Override
  public void close() throws IOException {
    listener.close();
    stall(false);
    for (Socket socket : sockets) {
      socket.close();
    }
  }
}
