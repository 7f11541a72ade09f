// Browsers start no Worker for a page that was opened from a file. The search of the site runs in one, so that here a
// hidden frame takes its place. The theme would load a script for that from another host, unless one has this name.
(function () {
  "use strict";
  if (window.location.protocol !== "file:") return;

  var workers = (window.frameWorkers = []);

  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      var index = workers.push(this) - 1;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      var page = this.frame.contentDocument;
      page.open();
      page.write(
        "<script>var worker = parent.frameWorkers[" + index + "];" +
          "postMessage = function (data) { worker.receive(data) };</script>" +
          '<script src="' + new URL(url, window.location.href) + '" onload="worker.start()"></script>'
      );
      page.close();
    }

    // Called in the page: send a message to the script in the frame.
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: data }));
    }

    // Called in the frame: send a message to the page.
    receive(data) {
      this.dispatchEvent(new MessageEvent("message", { data: data }));
    }

    // Called when the script has loaded: deliver what was sent before.
    start() {
      var waiting = this.waiting;
      this.waiting = null;
      waiting.forEach(this.postMessage, this);
    }

    terminate() {
      this.frame.remove();
    }
  };
})();
