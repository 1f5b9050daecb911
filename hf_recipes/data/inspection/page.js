const field = document.getElementById("query");
const shown = document.getElementById("shown");
const batches = [...document.querySelectorAll(".batch")].map((batch) => ({
  batch,
  samples: [...batch.querySelectorAll("article")].map((sample) => ({ sample, text: sample.textContent.toLowerCase() })),
}));

function filter() {
  const words = field.value.toLowerCase();
  let found = 0, all = 0;
  for (const { batch, samples } of batches) {
    let here = 0;
    for (const { sample, text } of samples) {
      sample.hidden = !text.includes(words);
      here += !sample.hidden;
    }
    batch.hidden = here === 0;
    found += here;
    all += samples.length;
  }
  shown.textContent = words ? `${found} of ${all} samples` : `${all} samples`;
}

field.addEventListener("input", filter);
filter();
