// Beside a page that is served: a new one is loaded when there is one, and what went wrong with it is said.

const events = new EventSource("/events");
events.addEventListener("page", () => location.reload());
events.addEventListener("building", () => document.body.classList.add("building"));
events.addEventListener("failed", ({ data }) => {
  const note = document.getElementById("failed") ?? document.createElement("pre");
  note.id = "failed";
  note.textContent = JSON.parse(data);
  document.body.append(note);
  document.body.classList.remove("building");
});
