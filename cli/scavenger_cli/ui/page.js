// Draws every figure in the reader's colours and width, and again when either changes.
const themes = JSON.parse(document.getElementById("themes").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 600px)");

function draw() {
  const theme = themes[dark.matches ? "dark" : "light"];
  for (const plot of document.querySelectorAll(".plot")) {
    let text = document.getElementById(plot.id + "-data").textContent;
    for (const [name, colour] of Object.entries(theme)) text = text.replaceAll(name, colour);
    const figure = JSON.parse(text);
    figure.layout.legend = narrow.matches
      ? { orientation: "h", x: 0, y: -0.16, yanchor: "top", font: { size: 12 } }
      : { orientation: "v", x: 1.01, y: 1, font: { size: 13 } };
    figure.layout.margin = narrow.matches ? { l: 56, r: 8, t: 12, b: 44 } : { l: 72, r: 8, t: 40, b: 52 };
    figure.layout.xaxis.nticks = narrow.matches ? 5 : 10;
    Plotly.react(plot, figure.data, figure.layout, { responsive: true, displaylogo: false, displayModeBar: !narrow.matches });
  }
}

dark.addEventListener("change", draw);
narrow.addEventListener("change", draw);
draw();
