// A part of a run that is looked at closely: by wheel, by dragging, and by W, A, S and D, as Perfetto has it.

const CLOSEST = 2_000; // times

export class Zoomed {
  /** `whole`: [start, end] of what can be seen; `edges`: where these are drawn, in units of the picture; `paint(span)` draws. */
  constructor(host, whole, edges, paint) {
    Object.assign(this, { host, whole, edges, paint, span: [...whole] });
    let held = null;
    host.addEventListener("wheel", (event) => {
      if (event.ctrlKey) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.move(event.deltaX / 800);
      else this.scale(1.0015 ** event.deltaY, this.at(event));
    }, { passive: false });
    host.addEventListener("pointerdown", (event) => (held = event.clientX));
    host.addEventListener("pointermove", (event) => {
      if (held === null || !(event.buttons & 1) || this.isWhole()) return;
      this.move(-(event.clientX - held) / (host.clientWidth || 1));
      held = event.clientX;
    });
  }

  isWhole() {
    return this.span.every((end, side) => end === this.whole[side]);
  }

  /** The point of the run under the pointer. */
  at(event) {
    const picture = this.host.querySelector("svg").getBoundingClientRect();
    const inside = ((event.clientX - picture.left) / picture.width) * this.host.querySelector("svg").viewBox.baseVal.width;
    const part = Math.min(1, Math.max(0, (inside - this.edges[0]) / (this.edges[1] - this.edges[0])));
    return this.span[0] + part * (this.span[1] - this.span[0]);
  }

  scale(factor, around = (this.span[0] + this.span[1]) / 2) {
    const [first, last] = this.whole;
    const [from, to] = this.span;
    const wide = Math.min(last - first, Math.max((last - first) / CLOSEST, (to - from) * factor));
    this.show(around - ((around - from) / (to - from)) * wide, wide);
  }

  /** By a part of what is seen. */
  move(part) {
    const [from, to] = this.span;
    this.show(from + part * (to - from), to - from);
  }

  show(from, wide) {
    const [first, last] = this.whole;
    const start = Math.min(Math.max(from, first), last - wide);
    this.span = [start, Math.min(last, start + wide)];
    this.draw();
  }

  draw() {
    this.paint(this.span);
  }

  /** What a key does here; nothing where it is none of ours. */
  key(name) {
    const acts = { w: () => this.scale(1 / 1.4), s: () => this.scale(1.4), a: () => this.move(-0.2), d: () => this.move(0.2), f: () => this.show(this.whole[0], this.whole[1] - this.whole[0]) };
    acts["+"] = acts.w;
    acts["-"] = acts.s;
    acts[name]?.();
    return Boolean(acts[name]);
  }
}
