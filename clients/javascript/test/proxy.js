// A proxy that can stand still: it goes on accepting connections then, and forwards nothing.
import net from 'node:net'

export class Proxy {
  #stalled = false
  /** @type {Set<net.Socket>} */
  #sockets = new Set()

  /** @param {string} url of the server, which is changed to that of the proxy */
  static async start(url) {
    const proxy = new Proxy()
    const target = new URL(url)
    const { hostname, port } = target
    proxy.server = net.createServer((client) => {
      const server = net.connect(Number(port || 5432), hostname)
      for (const [from, to] of [
        [client, server],
        [server, client],
      ]) {
        proxy.#sockets.add(from)
        from.on('data', (data) => to.write(data))
        from.on('error', () => {})
        from.on('close', () => {
          proxy.#sockets.delete(from)
          if (!proxy.#stalled) to.destroy()
        })
      }
      if (proxy.#stalled) {
        client.pause()
        server.pause()
      }
    })
    await new Promise((resolve) => proxy.server.listen(0, '127.0.0.1', resolve))
    target.hostname = '127.0.0.1'
    target.port = String(proxy.server.address().port)
    proxy.url = target.href
    return proxy
  }

  /** How many connections are open through the proxy, counted on both sides. */
  get connections() {
    return this.#sockets.size
  }

  stall() {
    this.#stalled = true
    for (const socket of this.#sockets) socket.pause()
  }

  async close() {
    const closed = new Promise((resolve) => this.server.close(resolve))
    for (const socket of this.#sockets) socket.destroy()
    await closed
  }
}
