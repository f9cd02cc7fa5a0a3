// Search from file://: browsers start no workers there, so a hidden frame takes a worker's place.
(() => {
  if (location.protocol !== "file:") return
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      this.onmessage = this.onerror = null
      const home = new URL(address, location.href)
      const frame = document.createElement("iframe")
      frame.hidden = true
      this.waiting = []
      this.tell = message => this.waiting.push(message)
      document.body.append(frame)
      const inside = frame.contentWindow
      const heard = []
      // What a worker's script finds around it.
      inside.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      }
      const listen = inside.addEventListener.bind(inside)
      inside.addEventListener = (kind, listener, ...more) =>
        kind === "message" ? heard.push(listener) : listen(kind, listener, ...more)
      inside.importScripts = (...addresses) =>
        addresses.reduce((before, one) => before.then(() => load(one)), Promise.resolve())
      const load = one => new Promise((done, failed) => {
        const script = inside.document.createElement("script")
        script.src = new URL(one, home)
        script.onload = done
        script.onerror = failed
        inside.document.head.append(script)
      })
      load(home).then(() => {
        this.tell = data => {
          const event = new MessageEvent("message", { data })
          heard.forEach(listener => listener.call(inside, event))
          if (inside.onmessage) inside.onmessage(event)
        }
        this.waiting.forEach(this.tell)
      })
    }
    postMessage(data) { this.tell(data) }
    terminate() { this.tell = () => {} }
  }
})()
