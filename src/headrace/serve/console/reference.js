// The API reference: reads the OpenAPI document and lists what it says, with a button to try each call.

const SHOWN = 20000; // characters of an answer: a long history need not fill the page

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function resolve(schema, document_) {
  return schema?.$ref ? schema.$ref.slice(2).split("/").reduce((at, key) => at[key], document_) : schema;
}

function typeName(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.anyOf) return schema.anyOf.map(typeName).join(" or ");
  if (schema.type === "array") return `list of ${typeName(schema.items)}`;
  if (schema.enum) return schema.enum.join(", ");
  return schema.format ?? schema.type ?? "any";
}

function fields(schema) {
  const rows = Object.entries(schema.properties ?? {}).map(([name, field]) =>
    element("tr", "", element("th", "", element("code", "", name)), element("td", "", typeName(field)), element("td", "", field.description ?? "")),
  );
  if (rows.length === 0) return null;
  const head = element("thead", "", element("tr", "", ...["Field", "Type", "Meaning"].map((t) => element("th", "", t))));
  const scroll = element("div", "table-scroll", element("table", "", head, element("tbody", "", ...rows)));
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", "Fields of the answer");
  return scroll;
}

function tryIt(path, parameters) {
  const inputs = parameters.map((parameter) => {
    const input = element("input");
    input.name = parameter.name;
    input.required = parameter.required ?? false;
    input.value = parameter.schema.default ?? "";
    input.autocomplete = "off";
    return { parameter, input };
  });
  const output = element("pre");
  output.hidden = true;
  output.tabIndex = 0;
  const send = element("button", "", "Send");
  const form = element("form", "", ...inputs.map(({ parameter, input }) => element("label", "", parameter.name, input)), send);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    let address = path;
    const query = new URLSearchParams();
    for (const { parameter, input } of inputs) {
      if (parameter.in === "path") address = address.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
      else if (input.value !== "") query.set(parameter.name, input.value);
    }
    const target = query.size ? `${address}?${query}` : address;
    output.hidden = false;
    try {
      const answer = await fetch(target);
      const text = JSON.stringify(await answer.json(), null, 2);
      output.textContent = `GET ${target}\n${answer.status}\n\n${text.length > SHOWN ? `${text.slice(0, SHOWN)}\n…` : text}`;
    } catch (failure) {
      output.textContent = `GET ${target}\n${failure.message}`;
    }
  });
  return [form, output];
}

function operation(path, spec, document_) {
  const address = path.replace(":path}", "}");
  const answer = spec.responses["200"]?.content ?? {};
  const heading = element("h2", "", element("code", "", `GET ${address}`), spec.summary ?? "");
  const article = element("article", "", heading);
  // A description may hold a table in Markdown; its rows read well enough as lines.
  const prose = (spec.description ?? "").split("\n").filter((line) => !line.startsWith("|--")).map((line) => line.replace(/^\| *| *\|$/g, "").replace(/ *\| */g, " – ").replaceAll("`", "")).join("\n");
  if (prose) article.append(element("p", "", prose));
  const table = fields(resolve(answer["application/json"]?.schema, document_) ?? {});
  if (table) article.append(table);
  if (answer["application/json"]) article.append(...tryIt(address, spec.parameters ?? []));
  return article;
}

try {
  const answer = await fetch("/api/v1/openapi.json");
  const document_ = await answer.json();
  const operations = Object.entries(document_.paths).map(([path, methods]) => operation(path, methods.get, document_));
  const types = Object.entries(document_.components.schemas)
    .filter(([name]) => name.endsWith("Response"))
    .map(([name, schema]) => element("details", "", element("summary", "", name), element("p", "", (schema.description ?? "").split("\n\n")[0]), fields(schema) ?? ""));
  document.getElementById("operations").replaceChildren(...operations, element("h2", "types", "Types"), ...types);
} catch (failure) {
  const problem = document.getElementById("problem");
  problem.textContent = `The OpenAPI document could not be read: ${failure.message}.`;
  problem.hidden = false;
}
