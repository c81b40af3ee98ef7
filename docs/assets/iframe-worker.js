// Search runs in a Worker, which browsers refuse to pages opened from disk. There, this runs the same script in a
// hidden frame instead. Served pages keep their Worker.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.scope = frame.contentWindow
      this.scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = this.scope.document.createElement("script")
      script.src = url
      this.ready = new Promise(resolve => { script.onload = resolve })
      this.scope.document.body.appendChild(script)
    }

    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data })))
    }
  }
}
