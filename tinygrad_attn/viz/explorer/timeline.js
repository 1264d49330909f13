// Two lanes of time over one range input: the input gives touch, keyboard and screen readers; the lanes give the picture.

class Timeline {
  constructor(root, steps, tensors, language, go) {
    this.steps = steps;
    this.segments = [];
    this.range = make("input", { type: "range", min: "0", max: String(steps.length - 1), step: "1", "aria-label": language.text("timeline") });
    this.range.addEventListener("input", () => go(Number(this.range.value)));
    this.hint = make("output", { class: "hint", "aria-hidden": "true" });
    const track = make("div", { class: "track" }, this.range, this.hint); // a new one: it brings its own listeners
    root.querySelector(".track").replaceWith(track);
    this.track = track;
    for (const lane of ["forward", "backward"]) {
      const element = make("div", { class: `lane ${lane}`, "aria-hidden": "true" });
      steps.forEach((step, i) => {
        if (step.lane !== lane) return;
        const segment = make("span", { class: `segment kind-${step.kind}` });
        segment.style.setProperty("left", `${(100 * i) / steps.length}%`);
        segment.style.setProperty("width", `${100 / steps.length}%`);
        this.segments[i] = segment;
        element.append(segment);
      });
      this.track.append(element);
    }
    this.track.addEventListener("pointermove", (event) => {
      const i = this.stepAt(event);
      this.hint.textContent = language.text("stepTitle", { n: i + 1, name: tensors[steps[i].tensor].name });
      this.hint.style.setProperty("left", `${(100 * (i + 0.5)) / steps.length}%`);
    });
    this.track.addEventListener("pointerdown", (event) => { // the browser's own thumb arithmetic leaves room for a thumb
      event.preventDefault();
      this.range.focus();
      go(this.stepAt(event));
      this.dragging = event.pointerId;
      this.track.setPointerCapture(event.pointerId);
    });
    this.track.addEventListener("pointermove", (event) => { if (this.dragging === event.pointerId) go(this.stepAt(event)); });
    for (const name of ["pointerup", "pointercancel"]) this.track.addEventListener(name, () => { this.dragging = null; });
    root.querySelector(".labels").replaceChildren(make("span", {}, language.text("laneForward")), make("span", {}, language.text("laneBackward")));
  }

  stepAt(event) {
    const box = this.track.getBoundingClientRect();
    return Math.max(0, Math.min(this.steps.length - 1, Math.floor(((event.clientX - box.left) / box.width) * this.steps.length)));
  }

  show(step, spoken, stops) {
    this.range.value = String(step);
    this.range.setAttribute("aria-valuetext", spoken);
    this.segments.forEach((segment, i) => {
      segment.classList.toggle("done", i < step);
      segment.classList.toggle("now", i === step);
      segment.classList.toggle("inside", !stops.has(i));
    });
  }
}
