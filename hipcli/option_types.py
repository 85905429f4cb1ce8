"""The options and arguments of commands: names, types and help. Knows neither defaults nor what is done with them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Optional, get_args

import typer


def _option(*names: str, help: str, metavar: str | None = None) -> Any:
    """An option whose default goes without saying."""
    return typer.Option(*names, metavar=metavar, help=help, show_default=False)


def _argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help, show_default=False)


Sources = Annotated[
    Optional[list[str]], _argument("SRC...", "Files, folders, archives or URLs, read in order as one; - is standard input.")
]
SourcesApart = Annotated[
    Optional[list[str]], _argument("SRC...", "Files, folders, patterns or URLs; each file is a document of its own, an archive too.")
]
SourcesAndQuestion = Annotated[
    Optional[list[str]], _argument("SRC... QUESTION", "Files, folders, archives or URLs, then the question; - is standard input.")
]
Spec = Annotated[Optional[str], _argument("MODEL", "A name, a model directory, a GGUF file or a hub id.")]
Files = Annotated[Optional[list[str]], _option("--file", "-f", metavar="SRC", help="A document; may be repeated.")]
Question = Annotated[Optional[str], _option("--question", "-q", metavar="TEXT", help="The question; every argument is then a document.")]
Questions = Annotated[
    Optional[str], _option("--questions", metavar="FILE", help='Many questions: one a line, or JSON lines with "question".')
]
Spans = Annotated[Optional[int], _option("--spans", metavar="N", help="Even parts, as with --by pages, but N of them.")]
SummaryLength = Annotated[
    Literal["short", "medium", "long"], typer.Option("--length", help="How much is said of each part and of the whole.")
]
SummaryBy = Annotated[
    Literal["auto", "section", "pages"],
    typer.Option("--by", help="Parts: sections, even spans of pages, or short sections joined where there are any."),
]
Focus = Annotated[Optional[str], _option("--focus", metavar="TEXT", help="What the summary should tell about above all.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown.")]
SummaryTokens = Annotated[Optional[int], _option("--max-tokens", metavar="N", help="Longest answer, in tokens; from --length otherwise.")]
Contexts = Annotated[Optional[list[str]], _option("--context", metavar="N", help="Context length: 4096, 64K, 1M; may be repeated.")]
Model = Annotated[Optional[str], _option("--model", "-m", metavar="MODEL", help="A model directory, GGUF file or hub id.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", metavar="N", help="Longest answer, in tokens.")]
Temperature = Annotated[float, typer.Option("--temperature", metavar="X", help="0 takes the likeliest token.")]
TopP = Annotated[float, typer.Option("--top-p", metavar="X", help="Share of probability sampled from.")]
Seed = Annotated[Optional[int], _option("--seed", metavar="N", help="Makes sampling repeatable.")]
System = Annotated[Optional[str], _option("--system", metavar="TEXT", help="Replaces the system prompt.")]
Dense = Annotated[bool, typer.Option("--dense", help="Full attention instead of sparse.")]
DenseBelow = Annotated[Optional[int], _option("--dense-below", metavar="N", help="Full attention for the first N tokens; 0: never.")]
Preset = Annotated[str, typer.Option("--preset", metavar="NAME", help="Attention budget: a name, or with changes, as default:keep=4K.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option("--device", help="Where to compute; auto takes a GPU.")]
Dtype = Annotated[Literal["auto", "float32", "bfloat16", "float16"], typer.Option("--dtype", help="Number format of the model.")]
Kv = Annotated[
    Literal["auto", "gpu", "host"],
    typer.Option("--kv", help="Where a GPU keeps keys and values; auto puts on the host what does not fit."),
]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Only tell what reading would need, and where keys and values would lie.")]
KvDtype = Annotated[
    Literal["auto", "bf16", "fp8"], typer.Option("--kv-dtype", help="Format of keys and values; fp8 halves them, on a GPU.")
]
GpuMemory = Annotated[Optional[str], _option("--gpu-memory", metavar="SIZE", help="Take no more of the GPU than this: 24GiB.")]
HostMemory = Annotated[Optional[str], _option("--host-memory", metavar="SIZE", help="Take no more of the host than this: 64GiB.")]
Backend = Annotated[Literal["auto", "torch", "triton", "reference"], typer.Option("--backend", help="Implementation of the attention.")]
Encoding = Annotated[Optional[str], _option("--encoding", metavar="NAME", help="Encoding of text files; detected otherwise.")]
# as in readers/formats.py, which help must not load; a test holds them equal
FormatName = Literal["pdf", "epub", "docx", "html", "markdown", "rst", "latex", "srt", "vtt", "jsonl", "eml", "mbox", "rtf", "text"]
Type = Annotated[Optional[FormatName], _option("--type", "-t", help="Read the documents as this; found out otherwise.")]
Pages = Annotated[Optional[str], _option("--pages", metavar="LIST", help="Only these pages of each document: 10-40,55,90-.")]
PasswordFile = Annotated[Optional[str], _option("--password-file", metavar="FILE", help="Its first line opens encrypted PDFs.")]
NoStream = Annotated[bool, typer.Option("--no-stream", help="Print the answer when it is complete.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Report = Annotated[bool, typer.Option("--report", help="Print Markdown for a bug tracker, without paths and names.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 6 when pages could not be read.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but the result and errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Tell more on the way.")]
Offline = Annotated[bool, typer.Option("--offline", help="Never use the network.")]
Check = Annotated[bool, typer.Option("--check", help="Tell how far sparse attention agreed with dense attention.")]
Warnings = Annotated[bool, typer.Option("--warnings", help="List passages that seem written for a model, with their pages.")]
Cite = Annotated[Literal["auto", "off", "json"], typer.Option("--cite", help="Name the pages: as text, not at all, or as JSON on stderr.")]
Map = Annotated[bool, typer.Option("--map", help="Show over the whole document where the question looked.")]
MapFile = Annotated[Optional[str], _option("--map-file", metavar="FILE", help="Draw the map: .svg or .html.")]
NoMarks = Annotated[bool, typer.Option("--no-marks", help="Leave out the lines that name the pages.")]
Minutes = Annotated[float, typer.Option("--minutes", metavar="X", help="Time to spend at most.")]
Whole = Annotated[bool, typer.Option("--whole", help="Prefill whole contexts, however long, instead of sampling chunks.")]
Out = Annotated[Optional[str], _option("--out", metavar="FILE", help="Add each row to this file of JSON lines.")]
Prompt = Annotated[Optional[str], _option("--prompt", metavar="TEXT", help="What to ask of every file.")]
Rows = Annotated[
    Optional[str], _option("--out", metavar="FILE", help="Where rows go, .jsonl or .parquet; what it holds is not done again.")
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Try files again that failed in an earlier run.")]
Engine = Annotated[Literal["local", "ray"], typer.Option("--engine", help="This process, or workers of Ray.")]
Workers = Annotated[Optional[int], _option("--workers", metavar="N", help="Workers of Ray; one a GPU otherwise.")]
Export = Annotated[Optional[Literal["openai-batch"]], _option("--export", help="Write requests for another engine instead of answers.")]
MaxContext = Annotated[Optional[str], _option("--max-context", metavar="N", help="Refuse files too long for that engine: 32768, 128K.")]
ShapeName = Literal["llama-3.1-8b", "qwen2.5-7b", "llama-3.2-1b", "qwen2.5-0.5b", "smollm2-135m"]
SHAPE_NAMES = get_args(ShapeName)
Shape = Annotated[Optional[ShapeName], _option("--shape", help="Measure random weights of this shape instead of a model.")]
Parts = Annotated[Optional[list[str]], _option("--part", metavar="PART", help="layer or model; both otherwise.")]
Plot = Annotated[Optional[str], _option("--plot", metavar="FILE", help="Draw context against time: .svg, .png or .pdf.")]
Suites = Annotated[Optional[list[str]], _option("--suite", metavar="NAME", help="Accuracy: ruler, kv, babi, mrcr, passkey; or a list.")]
Tasks = Annotated[Optional[list[str]], _option("--task", metavar="NAME", help="Only this task of the suite; may be repeated.")]
Samples = Annotated[Optional[int], _option("--samples", metavar="N", help="Texts to make for each task and context.")]
Pack = Annotated[Optional[int], _option("--pack", metavar="N", help="Questions on one text at most; 1: as published.")]
Texts = Annotated[Optional[list[str]], _option("--text", metavar="FILE", help="Prose to hide facts in; may be repeated.")]
Attentions = Annotated[
    Optional[list[str]], _option("--attention", metavar="NAME", help="dense, auto or a preset (default:keep=4K); may be repeated.")
]
Scoring = Annotated[Optional[Literal["pass", "greedy", "both"]], _option("--scoring", help="One pass, decoding, or both.")]
SessionName = Annotated[Optional[str], _option("--session", metavar="NAME", help="Keep what is read under this name.")]
NoSession = Annotated[bool, typer.Option("--no-session", help="Neither use nor keep what was read before.")]
MaxSize = Annotated[Optional[str], _option("--max-size", metavar="SIZE", help="What all may take: 20GB, 500MB.")]
OlderThan = Annotated[Optional[str], _option("--older-than", metavar="AGE", help="Those not used for so long: 30d, 12h.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell what would be removed.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen; others than this machine's own need a token.")]
Port = Annotated[int, typer.Option("--port", metavar="N", help="The port; 0 takes one that is free.", min=0, max=65535)]
TokenFile = Annotated[
    Optional[str], _option("--token-file", metavar="FILE", help="Who may ask: a token a line, each with documents of its own.")
]
AllowHosts = Annotated[Optional[list[str]], _option("--allow-host", metavar="NAME", help="A name the server goes by; may be repeated.")]
Backlog = Annotated[int, typer.Option("--backlog", metavar="N", help="Questions that may wait; more are refused with 429.")]
Loaded = Annotated[int, typer.Option("--loaded", metavar="N", help="Documents in memory at once; others come back from the disk.")]
MostDocuments = Annotated[int, typer.Option("--documents", metavar="N", help="Uploads kept for one token.")]
UploadSize = Annotated[str, typer.Option("--upload-size", metavar="SIZE", help="Largest document: 100MB, 2GB.")]
UploadPages = Annotated[int, typer.Option("--upload-pages", metavar="N", help="Most pages of a document.")]
UploadSeconds = Annotated[float, typer.Option("--upload-seconds", metavar="X", help="For a document to arrive, and to be read.")]
Data = Annotated[Optional[str], _option("--data", metavar="DIR", help="Data files of LongBench, InfiniteBench or RULER.")]
