// The page of a simulation: one chart, whose cases can be hidden.

redraw = () => drawChart("simulation");
remember = () => putInAddress({ off: [...(hidden.get("case") || [])].join("|") });
function open() {
  hidden.clear();
  for (const name of (viewInAddress().get("off") || "").split("|").filter(Boolean)) hide("case", name, true);
  redraw();
  markWide();
}
addEventListener("hashchange", () => { if (!anchors()) open(); });
offer(find("simulation-data"), "simulation.json", await read("diagnoses"));
open();
