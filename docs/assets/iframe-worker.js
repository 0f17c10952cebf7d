// Browsers start no worker for a page that was opened from disk. There, this runs the worker of the site's search in a
// hidden frame. Material's offline plugin loads a script of the same name and use from another host otherwise.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.frame = frame.contentWindow;
      const { document: page } = this.frame;
      this.ready = new Promise(done => addEventListener("iframe-worker-ready", done, { once: true }));
      page.open();
      // Inside, importScripts adds script elements one after the other and returns a promise, which the worker awaits.
      page.write(`<script>
        window.postMessage = message => parent.dispatchEvent(new MessageEvent("iframe-worker", { data: message }));
        window.importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, failed) => {
          const script = document.createElement("script");
          Object.assign(script, { src: url, onload: done, onerror: failed });
          document.body.appendChild(script);
        })), Promise.resolve());
      <\/script><body><script src="${url}"><\/script><script>parent.dispatchEvent(new Event("iframe-worker-ready"))<\/script>`);
      page.close();
      addEventListener("iframe-worker", event => {
        const message = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(message);
        this.onmessage?.(message);
      });
    }
    postMessage(data) {
      this.ready.then(() => this.frame.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.frameElement.remove();
    }
  }
  window.IFrameWorker = window.Worker = IFrameWorker;
}
