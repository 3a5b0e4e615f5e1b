"""Start-up logs written from the shapes of each engine's lines, with the figures that reading them must give.

Figures come from runs of the engines' own code (record ids of the golden files) and from public logs (V.., S.., T..,
M.., O.. of engine_logs.json); the lines around them are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Figures = dict[tuple[str, str], str]


@dataclass(frozen=True)
class Written:
    """A log and what is in it.

    Attributes:
        lines: without rank tags.
        figures: (name, device or cache) to the value as printed.
        capacity: a part of each line that says how large the cache is.
        ranked: what stands before a line of a rank, `{rank}` being its number; empty where the engine tags none.
    """

    name: str
    engine: str
    version: str | None
    model: str | None
    lines: tuple[str, ...]
    figures: Figures
    capacity: tuple[str, ...]
    ranked: str = ""
    options: dict[str, str] = field(default_factory=dict)


def plain(**figures: str) -> Figures:
    return {(name, ""): value for name, value in figures.items()}


def _vllm(name: str, version: str, model: str, kv: str, length: int, available: str, tokens: str, conc: str,
          *more: str, one_line: bool = False, tp: int = 1, dcp: int = 1, block: int = 16,
          backend: str = "FLASH_ATTN", **figures: str,
) -> Written:  # fmt: skip
    size, concurrency = f"GPU KV cache size: {tokens} tokens", f"Maximum concurrency for {length:,} tokens per request"
    both = [f"{size}, {concurrency}: {conc}x"] if one_line else [size, f"{concurrency}: {conc}x"]
    lines = (
        f"INFO 10-06 15:56:26 [api_server.py:1839] vLLM API server version {version}",
        f"INFO 10-06 15:56:26 [utils.py:233] non-default args: {{'model_tag': '{model}', 'host': '10.1.2.3', 'model': "
        f"'{model}', 'max_model_len': {length}, 'kv_cache_dtype': '{kv}', 'tensor_parallel_size': {tp}, "
        f"'decode_context_parallel_size': {dcp}, 'block_size': {block}}}",
        f"INFO 10-06 15:56:35 [core.py:77] Initializing a V1 LLM engine (v{version}) with config: model='{model}', "
        f"speculative_config=None, dtype=torch.bfloat16, max_seq_len={length}, kv_cache_dtype={kv}",
        f"INFO 10-06 15:57:01 [cuda.py:368] Using {backend} attention backend out of potential backends: ['{backend}']",
        "INFO 10-06 15:57:09 [gpu_model_runner.py:2370] Model loading took 14.9888 GiB and 5.31 seconds",
        *(f"INFO 10-06 15:57:10 [interface.py:911] {line}" for line in more),
        f"INFO 10-06 15:57:31 [gpu_worker.py:298] Available KV cache memory: {available} GiB",
        *(f"INFO 10-06 15:57:31 [kv_cache_utils.py:1087] {line}" for line in both),
        "INFO 10-06 15:57:40 [gpu_model_runner.py:3480] Graph capturing finished in 8 secs, took 0.49 GiB",
    )
    given = {"available": available, "tokens": tokens.replace(",", ""), "per_request": str(length),
             "concurrency": conc, "weights": "14.9888", "graphs": "0.49"}  # fmt: skip
    return Written(
        name, "vllm", version, model, lines, plain(**given, **figures), ("GPU KV cache size", "KV cache memory:"),
        "(Worker_TP{rank} pid=41{rank}) ", {"kv_cache_dtype": kv, "max_model_len": str(length)},
    )  # fmt: skip


VLLM = (
    # C.llama31_8b.auto.b16.tp2: 56,320 blocks of 16
    _vllm("llama tp2", "0.11.2", "meta-llama/Llama-3.1-8B", "auto", 131072, "55.00", "901,120", "6.88", tp=2),
    # C.gemma3_27b.tp1.len131072.hmaon: 16,384 blocks of 10 pages, 7 groups
    _vllm("gemma window", "0.33.0", "google/gemma-3-27b-it", "auto", 131072, "20.0", "145,829", "1.11",
          "Add 8 padding layers, may waste at most 15.38% KV cache memory", one_line=True, padding_layers="8",
          padding_waste="15.38"),
    # C.gpt_oss_120b.auto.tp1: 14,563 blocks
    _vllm("gpt-oss", "0.33.0", "openai/gpt-oss-120b", "auto", 131072, "8.0", "206,916", "1.58", one_line=True),
    # C.deepseek_v3.fp8.FLASHINFER_MLA.tp8.dcp8: 28,649 blocks of 32 tokens on each of 8 ranks
    _vllm("deepseek dcp", "0.33.0", "deepseek-ai/DeepSeek-V3", "fp8", 163840, "30.0", "7,334,144", "44.76",
          one_line=True, tp=8, dcp=8, block=32, backend="FLASHINFER_MLA"),
    # V06, V69: public logs
    _vllm("qwen 0.11", "0.11.2", "Qwen/Qwen2.5-1.5B-Instruct", "auto", 32768, "5.03", "188,512", "5.75"),
    _vllm("hybrid", "0.18.0", "Qwen/Qwen3.5-35B-A3B", "auto", 262144, "55.72", "729,696", "10.85",
          "Setting attention block size to 1056 tokens to ensure that attention page size is >= mamba page size.",
          "Padding mamba page size by 0.76% to ensure that mamba page size and attention page size are exactly equal.",
          "Estimated CUDA graph memory: 1.65 GiB total", block_size="1056", mamba_padding="0.76",
          graph_estimate="1.65"),
    # V01: V0 engine
    Written("V0", "vllm", "0.6.4", "meta-llama/Llama-3.1-8B-Instruct", (
        "INFO 11-21 10:00:00 llm_engine.py:237] Initializing an LLM engine (v0.6.4) with config: "
        "model='meta-llama/Llama-3.1-8B-Instruct', speculative_config=None, max_seq_len=20000, kv_cache_dtype=auto",
        "INFO 11-21 10:00:20 model_runner.py:1077] Loading model weights took 14.9888 GB",
        "INFO 11-21 10:00:21 worker.py:232] the current vLLM instance can use total_gpu_memory (23.58GiB) x "
        "gpu_memory_utilization (0.90) = 21.22GiB",
        "INFO 11-21 10:00:21 worker.py:232] model weights take 14.99GiB; non_torch_memory takes 0.35GiB; PyTorch "
        "activation peak memory takes 2.07GiB; the rest of the memory reserved for KV Cache is 3.81GiB.",
        "INFO 11-21 10:00:21 gpu_executor.py:113] # GPU blocks: 1952, # CPU blocks: 2048",
        "INFO 11-21 10:00:21 gpu_executor.py:117] Maximum concurrency for 20000 tokens per request: 1.56x",
    ), plain(blocks="1952", cpu_blocks="2048", available="3.81", concurrency="1.56", total_memory="23.58",
             utilization="0.90", budget="21.22", non_torch="0.35", activation="2.07"),
        ("# GPU blocks", "reserved for KV Cache"), "(VllmWorkerProcess pid=7{rank}) ", {"kv_cache_dtype": "auto"}),
    # C.llama31_8b.too_small: refused
    Written("refused", "vllm", "0.33.0", "meta-llama/Llama-3.1-8B", (
        "INFO 11-21 10:00:00 [core.py:77] Initializing a V1 LLM engine (v0.33.0) with config: "
        "model='meta-llama/Llama-3.1-8B', kv_cache_dtype=auto",
        "INFO 11-21 10:00:20 [gpu_model_runner.py:2370] Model loading took 14.99 GiB memory and 5.31 seconds",
        "ERROR 11-21 10:00:21 [core.py:708] ValueError: To serve at least one request with the model's max seq len "
        "(131072), (16.0 GiB KV cache is needed, which is larger than the available KV cache memory (8.0 GiB). Based "
        "on the available memory, the estimated maximum model length is 65520. Try increasing `gpu_memory_utilization`",
    ), plain(needed="16.0", refused_available="8.0", estimated_length="65520", asked_length="131072"),
        ("KV cache is needed",), "(EngineCore_DP{rank} pid=7{rank}) ", {}),
)  # fmt: skip


def _sglang(
    name: str, model: str, max_tokens: int, context: int, pools: tuple[str, ...], tp: int = 1, kv: str = "auto",
    page: int = 1, **figures: str,
) -> Written:  # fmt: skip
    lines = (
        f"[2026-08-28 21:19:23] server_args=ServerArgs(model_path='{model}', tp_size={tp}, host='10.1.2.3', "
        f"kv_cache_dtype='{kv}', mem_fraction_static=0.83, page_size={page})",
        "[2026-08-28 21:19:30{tp}] Load weight begin. avail mem=78.58 GB",
        "[2026-08-28 21:32:38{tp}] Load weight end. elapsed=7.55 s, type=LlamaForCausalLM, dtype=torch.bfloat16, avail "
        "mem=63.38 GB, mem usage=15.20 GB.",
        *("[2026-08-28 21:34:15{tp}] " + pool for pool in pools),
        "[2026-08-28 21:34:15{tp}] Memory pool end. avail mem=22.45 GB",
        "[2026-08-28 21:34:51{tp}] Capture target decode CUDA graph end. elapsed=1.61 s, mem usage=0.11 GB, avail "
        "mem=22.34 GB.",
        f"[2026-08-28 21:34:51{{tp}}] max_total_num_tokens={max_tokens}, chunked_prefill_size=8192, max_prefill_tokens="
        f"16384, max_running_requests=2048, context_len={context}, available_gpu_mem=22.34 GB",
    )
    given = plain(max_tokens=str(max_tokens), context=str(context), chunk="8192", requests="2048",
                  before_weights="78.58", after_weights="63.38", weights="15.20", available="22.34",
                  after_pool="22.45", graphs="0.11")  # fmt: skip
    for key, value in figures.items():
        what, _, of = key.partition("__")
        given[what, of] = value
    capacity = ("Cache is allocated", "max_total_num_tokens=", "full_layer_tokens", "SWAKVPool")
    return Written(
        name, "sglang", None, model, lines, given, capacity,
        " TP{rank}", {"kv_cache_dtype": kv, "page_size": str(page), "tp_size": str(tp)},
    )  # fmt: skip


def _kv(tokens: int, k: str, v: str, label: str = "") -> str:
    return f"{label}KV Cache is allocated. dtype: torch.bfloat16, #tokens: {tokens}, K size: {k} GB, V size: {v} GB"


SGLANG = (
    # B.llama31_8b.auto.tp1.p1: 327,680 tokens of 131,072 bytes in 40 GiB
    _sglang("llama", "meta-llama/Llama-3.1-8B-Instruct", 327680, 131072, (_kv(327680, "20.00", "20.00"),),
            tokens="327680", k="20.00", v="20.00"),
    # S03: one latent pool
    _sglang("latents", "moonshotai/Kimi-K2.5", 2454421, 262144,
            ("KV Cache is allocated. dtype: torch.bfloat16, #tokens: 2454421, KV size: 160.63 GB",),
            tokens="2454421", kv__="160.63", tp=8),
    # S12: states beside K and V
    _sglang("states", "Qwen/Qwen3.8-27B-FP8", 330323, 262144,
            ("Mamba Cache is allocated. max_mamba_cache_size: 124, conv_state size: 0.34GB, ssm_state size: 17.58GB ",
             _kv(330323, "10.08", "10.08")),
            tokens="330323", k="10.08", v="10.08", slots="124", conv="0.34", ssm="17.58"),
    # S17, S18: windowed pools without and with their names
    _sglang("windows", "XiaomiMiMo/MiMo-V2-Flash", 375360, 262144,
            ("Use sliding window memory pool. full_layer_tokens=375360, swa_layer_tokens=300288",
             _kv(300288, "8.38", "5.59"), _kv(375360, "1.21", "0.81"),
             "SWAKVPool mem usage: 15.98 GB, swa size: 300288, full size: 375360"),
            tokens__swa="300288", k__swa="8.38", v__swa="5.59", tokens__full="375360", k__full="1.21", v__full="0.81",
            pool="15.98", full_tokens="375360", swa_tokens="300288", tp=4,
            page=64),
    _sglang("named windows", "google/gemma-4-31b-it", 56320, 131072,
            (_kv(45056, "17.19", "17.19", "SWA "), _kv(56320, "2.15", "2.15", "Full ")),
            tokens__swa="45056", k__swa="17.19", v__swa="17.19", tokens__full="56320", k__full="2.15",
            v__full="2.15"),
    # S20: a draft's pool after the target's
    _sglang("draft", "Qwen/Qwen3.6-27B", 270000, 262144,
            ("Mamba Cache is allocated. max_mamba_cache_size: 5, conv_state size: 0.02GB, ssm_state size: 0.84GB "
             "intermediate_ssm_state_cache size: 2.25GB intermediate_conv_window_cache size: 0.02GB",
             _kv(270000, "4.12", "4.12"), _kv(270000, "1.29", "1.29")),
            tokens="270000", k="4.12", v="4.12", tokens__draft="270000", k__draft="1.29", v__draft="1.29", slots="5",
            conv="0.02", ssm="0.84", draft_ssm="2.25", draft_conv="0.02", kv="fp8_e4m3"),
)  # fmt: skip


def _trt(name: str, version: str, pool: str, tokens: int, block: int, blocks: int | None, *more: str) -> Written:
    primary = [f"Number of blocks in KV cache primary pool: {blocks}"] if blocks else []
    lines = (
        f"[TensorRT-LLM] TensorRT-LLM version: {version}",
        "[TensorRT-LLM][INFO] Loaded engine size: 15316 MiB",
        *(f"[TensorRT-LLM][INFO] {line}" for line in more),
        *(f"[TensorRT-LLM][INFO] {line}" for line in primary),
        f"[TensorRT-LLM][INFO] Number of tokens per block: {block}.",
        f"[TensorRT-LLM][INFO] [MemUsageChange] Allocated {pool} GiB for max tokens in paged KV cache ({tokens}).",
    )
    figures = plain(pool=pool, tokens=str(tokens), block_size=str(block), weights="15316")
    figures |= plain(blocks=str(blocks)) if blocks else {}
    return Written(name, "trtllm", version, None, lines, figures,
                   ("paged KV cache (", "KV cache primary pool"), "[1,{rank}]<stdout>: ")  # fmt: skip


TENSORRT_LLM = (
    # T02, T03, T06, T07 and two public logs
    _trt("dynamo", "0.17.0", "26.91", 220480, 64, None, "Max KV cache pages per sequence: 2048"),
    _trt("kimi fp8", "1.2.0", "166.02", 5073376, 32, 158543),
    _trt("qwen3 bf16", "1.0.0", "4.67", 33984, 32, 1062),
    _trt("qwen3 fp8", "1.0.0", "2.33", 33984, 32, 1062),
    _trt("h100", "0.16.0", "62.99", 294848, 64, 4607,
         "Memory usage when calculating max tokens in paged kv cache: total: 79.10 GiB, available: 63.62 GiB"),
    Written("2023", "trtllm", "0.5.0", None, (
        "[TensorRT-LLM] TensorRT-LLM version: 0.5.0",
        "[TensorRT-LLM][INFO] Allocated 69524783104 bytes for k/v cache. ",
        "[TensorRT-LLM][INFO] Using 132608 tokens in paged KV cache.",
    ), plain(pool_bytes="69524783104", tokens="132608"), ("k/v cache", "paged KV cache"), "[1,{rank}]<stdout>: "),
)  # fmt: skip


def _lmdeploy(name: str, block: str, blocks: int, policy: int, *more: str, **figures: str) -> Written:
    lines = (
        "2025-07-01 12:00:00,000 - lmdeploy - INFO - async_engine.py:270 - input backend=turbomind, backend_config="
        "TurbomindEngineConfig(dtype='auto', tp=1, session_len=131072, max_batch_size=128, cache_max_entry_count=0.8, "
        f"quant_policy={policy})",
        f"[TM][INFO] [BlockManager] block_size = {block} MB",
        f"[TM][INFO] [BlockManager] max_block_count = {blocks}",
        "[TM][INFO] [BlockManager] chunk_size = 1",
        *more,
    )
    size = "block_bytes" if "." in block else "block_bytes_floor"
    return Written(name, "lmdeploy", None, None, lines, plain(**{size: block}, blocks=str(blocks), **figures),
                   ("block_size =", "max_block_count"),
                   options={"quant_policy": str(policy), "cache_max_entry_count": "0.8"})  # fmt: skip


LMDEPLOY = (
    # M01 to M04
    _lmdeploy("internlm", "64", 32, 0),
    _lmdeploy("internlm quarter", "64", 159, 0),
    _lmdeploy("internvl", "8.000", 6214, 0),
    _lmdeploy("gpt-oss int4", "0.844", 1740, 4,
              "[TM][WARNING] session_len truncated to 111360 due to limited KV cache memory", session="111360"),
    Written("object cache", "lmdeploy", None, None, (
        "[TM][INFO] Object cache budget: 9728.000 MB from free 12160.000 MB and ratio 0.800",
    ), plain(pool="9728.000", free="12160.000", fraction="0.800"), ("Object cache budget",)),
    Written("pytorch", "lmdeploy", None, None, (
        "2024-12-30 12:41:32,785 - lmdeploy - DEBUG - model_agent.py:62 - device<0> free gpu memory: 6784 mb",
        "2024-12-30 12:41:32,786 - lmdeploy - DEBUG - model_agent.py:76 - estimated max runtime memory: 5061 mb",
        "2024-12-30 12:41:32,786 - lmdeploy - INFO - cache_engine.py:36 - build CacheEngine with config:CacheConfig("
        "max_batches=128, block_size=64, num_cpu_blocks=128, num_gpu_blocks=21, window_size=-1, "
        "cache_max_entry_count=0.1, max_prefill_token_num=8192, enable_prefix_caching=False, quant_policy=0)",
    ), plain(block_size="64", blocks="21", cpu_blocks="128", free="6784", runtime="5061"), ("build CacheEngine",)),
)  # fmt: skip

_BLOB = "/home/ann/.ollama/models/blobs/sha256-4d2396b16114669389d7555c15a1592aad584750310f648edad5ca8c4eccda17"
_OLLAMA = "time=2025-03-15T09:19:41.248Z level=INFO "


def _ollama_old(name: str, kv: str, context: int, parallel: int, title: str) -> Written:
    unit = kv.split()[1]
    lines = (
        _OLLAMA + 'source=routes.go:1286 msg="Listening on 127.0.0.1:11434 (version 0.6.2)"',
        _OLLAMA
        + f'source=sched.go:715 msg="new model will fit in available VRAM in single GPU, loading" model={_BLOB} '
        f"gpu=GPU-fb2b6441 parallel={parallel} available=15720382464",
        _OLLAMA + 'source=server.go:138 msg=offload library=cuda layers.model=33 memory.available="[14.6 GiB]" '
        f'memory.required.full="6.2 GiB" memory.required.kv="{kv}" memory.weights.total="4.7 {unit}" '
        'memory.graph.full="560.0 MiB"',
        _OLLAMA + f'source=server.go:391 msg="starting llama server" cmd="ollama runner --model {_BLOB} '
        f'--ctx-size {context} --batch-size 512 --n-gpu-layers 33 --parallel {parallel} --port 32989"',
        f"llama_model_loader: loaded meta data with 34 key-value pairs and 218 tensors from {_BLOB} (version GGUF V3)",
        f"print_info: general.name     = {title}",
    )
    figures = plain(kv_estimate=kv.split()[0], context=str(context), slots=str(parallel), required="6.2")
    return Written(name, "ollama", "0.6.2", title, lines, figures, ("memory.required.kv",))


def _ollama_new(name: str, *devices: tuple[str, str]) -> Written:
    lines = (
        _OLLAMA + 'source=routes.go:1286 msg="Listening on 127.0.0.1:11434 (version 0.12.3)"',
        _OLLAMA + 'source=server.go:653 msg="loading model" "model layers"=27 requested=-1',
        _OLLAMA + 'source=runner.go:1170 msg=load request="{Operation:commit LoraPath:[] Parallel:1 BatchSize:512 '
        'FlashAttention:true KvSize:8192 KvCacheType:q8_0 NumThreads:8}"',
        *(_OLLAMA + f'source=device.go:256 msg="kv cache" device={d} size="{size}"' for d, size in devices),
        _OLLAMA + 'source=device.go:272 msg="total memory" size="22.4 GiB"',
    )
    figures = {("kv_device", d): size.split()[0] for d, size in devices}
    return Written(name, "ollama", "0.12.3", None, lines, figures | plain(context="8192", slots="1"), ("kv cache",),
                   options={"kv_cache_type": "q8_0"})  # fmt: skip


OLLAMA = (
    # O04, O05, O06, O08
    _ollama_old("llama 3.2", "448.0 MiB", 4096, 1, "Llama 3.2 3B Instruct"),
    _ollama_old("mistral", "1.0 GiB", 8192, 4, "Mistral 7B Instruct v0.3"),
    _ollama_old("phi-4", "400.0 MiB", 2048, 1, "Phi 4"),
    _ollama_old("smollm2", "1.5 GiB", 8192, 1, "SmolLM2 1.7B Instruct"),
    _ollama_new("one device", ("ROCm0", "450.0 MiB")),
    _ollama_new("two devices", ("CUDA0", "1.9 GiB"), ("CPU", "1.1 GiB")),
)

_META = (
    "llama_model_loader: loaded meta data with 34 key-value pairs and 291 tensors from {} (version GGUF V3 (latest))"
)


def _llama(name: str, figures: Figures, *lines: str, model: str = "Qwen3.5-9B-Q8_0.gguf") -> Written:
    start = (
        "build: 6123 (a1b2c3d4) with cc (Ubuntu 13.3.0) for x86_64-linux-gnu",
        "llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 3090) - 23525 MiB free",
        _META.format("/srv/models/" + model),
    )
    return Written(name, "llamacpp", "6123", model, (*start, *lines), figures,
                   ("size = ", "self size", "buffer size"))  # fmt: skip


LLAMA_CPP = (
    # L22: states beside K and V
    _llama("states", {("size", ""): "201.00", ("k", ""): "2112.00", ("v", ""): "2112.00", ("r", ""): "9.00",
                      ("s", ""): "192.00", ("rs_buffer", "CUDA0"): "201.00", ("kv_buffer", "CUDA0"): "4224.00",
                      ("compute_buffer", "CUDA0"): "808.02"},
           "llama_kv_cache:      CUDA0 KV buffer size =  4224.00 MiB",
           "llama_kv_cache: size = 4224.00 MiB (135168 cells,   8 layers,  4/1 seqs), K (f16): 2112.00 MiB, V (f16): "
           "2112.00 MiB",
           "llama_memory_recurrent:      CUDA0 RS buffer size =   201.00 MiB",
           "llama_memory_recurrent: size =  201.00 MiB (     4 cells,  32 layers,  4 seqs), R (f32):    9.00 MiB, S "
           "(f32):  192.00 MiB",
           "sched_reserve:      CUDA0 compute buffer size =   808.02 MiB"),
    # L12: eight streams, windows
    _llama("windows", {("k", "non-SWA"): "192.00", ("v", "non-SWA"): "192.00", ("k", "SWA"): "48.00",
                       ("v", "SWA"): "48.00", ("cells", "SWA"): "512", ("streams", "SWA"): "8"},
           "llama_kv_cache_iswa: creating non-SWA KV cache, size = 2048 cells",
           "llama_kv_cache:      CUDA0 KV buffer size =   384.00 MiB",
           "llama_kv_cache: size =  384.00 MiB (  2048 cells,  12 layers,  8/8 seqs), K (f16):  192.00 MiB, V (f16):  "
           "192.00 MiB",
           "llama_kv_cache_iswa: creating     SWA KV cache, size = 512 cells",
           "llama_kv_cache:      CUDA0 KV buffer size =    96.00 MiB",
           "llama_kv_cache: size =   96.00 MiB (   512 cells,  12 layers,  8/8 seqs), K (f16):   48.00 MiB, V (f16):   "
           "48.00 MiB", model="gpt-oss-20b.gguf"),
    # L06: quantised, mid-2025 wording
    _llama("quantised", {("size", ""): "1088.00", ("k", ""): "544.00", ("v", ""): "544.00"},
           "llama_kv_cache_unified:      CUDA0 KV buffer size =  1088.00 MiB",
           "llama_kv_cache_unified: size = 1088.00 MiB (  8192 cells,  64 layers,  1 seqs), K (q8_0):  544.00 MiB, V "
           "(q8_0):  544.00 MiB", model="Qwen3-32B.gguf"),
    # L02: early 2025
    _llama("2025-02", {("kv_self", ""): "640.00", ("k", ""): "320.00", ("v", ""): "320.00"},
           "llama_kv_cache_init: kv_size = 2048, offload = 1, type_k = 'f16', type_v = 'f16', n_layer = 32, can_shift "
           "= 1", "llama_kv_cache_init:      CUDA0 KV buffer size =   640.00 MiB",
           "llama_context: KV self size  =  640.00 MiB, K (f16):  320.00 MiB, V (f16):  320.00 MiB",
           model="pythia-2.8b.gguf"),
    # L03: 2023
    _llama("2023", {("kv_self", ""): "400.00"}, "llama_model_load_internal: n_ctx      = 512",
           "llama_init_from_file: kv self size  =  400.00 MB",
           model="llama-13b.bin"),
)  # fmt: skip

ALL = (*VLLM, *SGLANG, *LLAMA_CPP, *TENSORRT_LLM, *LMDEPLOY, *OLLAMA)


def lines_of(log: Written, rank: int | None = None) -> list[str]:
    """The lines, with the tags of a rank or without."""
    if "{tp}" in "".join(log.lines):
        tag = "" if rank is None else log.ranked.format(rank=rank)
        return [line.replace("{tp}", tag) for line in log.lines]
    tag = log.ranked.format(rank=rank) if rank is not None else ""
    return [tag + line for line in log.lines]
