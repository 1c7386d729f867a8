// Search without a server: pages that are opened as files may not start workers, and Material's search is one. Here
// it runs in a hidden frame in place of a thread. Served pages keep their workers.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.body.appendChild(document.createElement("iframe"))
      frame.hidden = true
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = frame.contentDocument.createElement("script")
      script.src = new URL(address, location.href).href
      this.loaded = new Promise(resolve => { script.onload = resolve })
      frame.contentDocument.body.appendChild(script)
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
