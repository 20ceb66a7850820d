"""The template of report.html.

One string: the page needs no file beside the code and loads nothing.
"""

TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{{ study.slug }}</title>
<style>
:root { color-scheme: light dark; --line: #d0d0d0; --soft: #f5f5f5; --warn: #fff4dc;
  --page: #fff; --shade: #0003; }
@media (prefers-color-scheme: dark) { :root { --line: #444; --soft: #1d1f22; --warn: #3a2f16;
  --page: #121212; --shade: #fff4; } }
body { background: var(--page); font: 16px/1.5 system-ui, sans-serif; max-width: 70rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
h3 { margin-bottom: .2rem; } h3 code { font-weight: 400; opacity: .8; }
nav { border-left: 4px solid var(--line); padding-left: 1rem; } summary { cursor: pointer; }
h1, p, li { overflow-wrap: anywhere; }
figure { margin: 1.2rem 0; }
.drawing { overflow-x: auto; background: #fff; border-radius: 4px; }
.drawing svg { display: block; width: 100%; min-width: 36rem; height: auto; }
.explained { display: flex; flex-wrap: wrap; gap: .4rem 1rem; align-items: center; }
.explained svg { flex: none; background: #fff; border-radius: 4px; }
.explained p { flex: 1 1 16rem; margin: 0; }
figcaption, .small { font-size: .88rem; opacity: .85; }
/* a shade at an edge beyond which a table goes on; covers move with the table and hide it */
.table { overflow-x: auto; border: 1px solid var(--line); border-radius: 4px;
  background: linear-gradient(to right, var(--page) 40%, transparent) left / 3rem 100% local,
    linear-gradient(to left, var(--page) 40%, transparent) right / 3rem 100% local,
    linear-gradient(to right, var(--shade), transparent) left / 1rem 100% scroll,
    linear-gradient(to left, var(--shade), transparent) right / 1rem 100% scroll;
  background-repeat: no-repeat; scrollbar-width: thin; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums;
  width: 100%; }
th, td { padding: .35rem .6rem; text-align: left; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { border-bottom-width: 2px; } td.long { white-space: normal; min-width: 44rem; }
tr > :first-child { position: sticky; left: 0; background: var(--page); }
tr:last-child td { border-bottom: 0; }
.box { background: var(--soft); border-left: 4px solid #0072B2; padding: .6rem 1rem;
  border-radius: 4px; }
ul.box { padding-left: 2.2rem; }
.unfinished { background: var(--warn); border-left-color: #E69F00; }
pre { background: var(--soft); padding: .7rem 1rem; overflow-x: auto; border-radius: 4px; }
dt { font-weight: 600; } dd { margin: 0 0 .4rem 0; overflow-wrap: anywhere; }
</style>
</head>
<body>
{% macro table_of(table) %}
{% if table|length > most_rows %}<details><summary>All {{ table|length }} rows</summary>
{% endif %}<div class="table" tabindex="0"><table>
<thead><tr>{% for name in table.columns %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.values.tolist() %}<tr>{% for cell in row -%}
<td{% if cell|length > 110 %} class="long"{% endif %}>{{ cell }}</td>
{%- endfor %}</tr>
{% endfor %}</tbody>
</table></div>{% if table|length > most_rows %}</details>{% endif %}
{% endmacro %}
{% macro caption_of(caption) %}
{% set parts = caption.split("\n") %}
<p class="small">{{ parts[0]|code }}</p>
{% if parts|length > 1 %}<details class="small"><summary>What it shows, in full</summary>
{% for part in parts[1:] %}<p>{{ part|code }}</p>{% endfor %}</details>{% endif %}
{% endmacro %}
{% macro drawing_of(figure) %}<figure id="figure-{{ figure.name }}">
<div class="drawing">{{ figure.svg|safe }}</div>
<figcaption><strong>{{ figure.name|in_words }}</strong> <code>{{ figure.name }}</code>
{{ caption_of(figure.caption) }}</figcaption>
</figure>{% endmacro %}
<h1>{{ study.question }}</h1>
<p class="small">{{ study.slug }}, after {{ study.source }}</p>
<nav class="small"><div><a href="#answer">Answer</a></div>
{% for kind, shown in (("Figures", figures), ("Tables", tables)) if shown %}
<div>{{ kind }}: {% for of in shown %}<a href="#{{ kind[:-1]|lower }}-{{ of.name }}">
{{- of.name|in_words }}</a>{{ ", " if not loop.last }}{% endfor %}</div>
{% endfor %}<div><a href="#design">Design</a>, <a href="#numbers">What these numbers are</a>,
<a href="#again">How to reproduce, trials and MLflow</a></div></nav>
{% if unfinished -%}
<p class="box unfinished"><strong>Unfinished.</strong> {{ unfinished }}</p>
{%- endif %}
{% if explanation %}
<div class="explained small">{{ explanation.svg|safe }}<p>{{ explanation.sentence }}</p></div>
{% endif %}
{% if figures %}{{ drawing_of(figures[0]) }}{% endif %}
<h2 id="answer">Answer</h2>
<ul>{% for sentence in headline %}<li>{{ sentence }}
{% if sentence.table is not defined %}<a class="small" href="#numbers">Counts</a>
{% elif sentence.table in tables|map(attribute="name") %}
<a class="small" href="#table-{{ sentence.table }}">Table</a>{% endif %}</li>{% endfor %}</ul>
{% if tables %}<h2>Tables</h2>{% endif %}
{% for table in tables %}<h3 id="table-{{ table.name }}">{{ table.name|in_words }}
<code>{{ table.name }}</code></h3>{{ caption_of(table.caption) }}
{{ table_of(table.cells) }}
{% endfor %}
{% if figures|length > 1 %}<h2>More figures</h2>{% endif %}
{% for figure in figures[1:] %}{{ drawing_of(figure) }}
{% endfor %}
<h2 id="design">Design</h2>
<p>{{ design_words }}</p>
{% for paragraph in study.design.split("\\n\\n") if paragraph %}<p>{{ paragraph }}</p>
{% endfor %}{{ table_of(design) }}
{% if study.notes %}<h2>Notes</h2>
{% for paragraph in study.notes.split("\\n\\n") %}<p>{{ paragraph }}</p>
{% endfor %}{% endif %}
<h2 id="numbers">What these numbers are</h2>
{{ table_of(populations) }}
<ul class="box">{% for sentence in caveats %}<li>{{ sentence }}</li>
{% endfor %}</ul>
<h2 id="again">How to reproduce</h2>
{% if "command" in facts %}<pre>{{ facts.command }}</pre>{% endif %}
<dl>{% for name, value in facts.items() if name != "command" -%}
<dt>{{ name }}</dt><dd>{% if name in links and value.startswith(("http", "../", "file:")) -%}
<a href="{{ value }}">{{ value }}</a>{% else %}{{ value }}{% endif %}</dd>
{% endfor %}</dl>
</body>
</html>
"""
