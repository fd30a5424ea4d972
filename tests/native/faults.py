"""Planted faults that tests of `native` must notice."""

from tests.planting import Fault

FAULTS = [
    Fault(
        "inputs are rounded to other groups",
        "native/products.py:rounded_inputs",
        "(0, -width % GROUP)",
        "(-width % GROUP, 0)",
        test="test_products.py::test_inputs_are_rounded_as_the_library_rounds_them",
    ),
    Fault(
        "weights in 4 bits are read as 8",
        "native/products.py:_multiply",
        "KINDS[weight.dtype]",
        "min(KINDS[weight.dtype], 2)",
        test="test_products.py::test_beside_numpy",
    ),
    Fault(
        "a bias in bf16 is read as fp32",
        "native/products.py:_multiply",
        "bias is not None and bias.dtype == torch.bfloat16",
        "False",
        test="test_products.py::test_beside_numpy",
    ),
    Fault(
        "a library of another processor is loaded",
        "native/library.py:_compiled",
        "processor().encode()",
        "b''",
        test="test_products.py::test_another_processor_compiles_its_own",
    ),
    Fault(
        "threads are not given back",
        "native/cores.py:side_by_side",
        "torch.set_num_threads(threads)",
        "torch.set_num_threads(threads // workers)",
        test="test_cores.py::test_items_are_taken_as_they_are_needed",
    ),
    Fault(
        "the end of a matrix is not unpacked",
        "native/products.py:_unpacked",
        "range(0, len(weight), step)",
        "range(0, len(weight) - step + 1, step)",
        test="test_products.py::test_many_rows_are_multiplied_with_unpacked_weights",
    ),
    Fault(
        "inputs in bf16 are read as fp32 before unpacked weights",
        "native/products.py:_unpacked",
        "x.dtype == torch.bfloat16, _address(x)",
        "False, _address(x)",
        test="test_products.py::test_many_rows_are_multiplied_with_unpacked_weights",
    ),
    Fault(
        "all of torch's symbols are global",
        "native/library.py:operators",
        'f"libtorch_cpu.{suffix}"))',
        'f"libtorch_cpu.{suffix}"), ctypes.RTLD_GLOBAL)',
        test="test_library.py::test_only_the_operator_is_visible_to_other_libraries",
    ),
    Fault(
        "blocked ids are among the most probable",
        "native/best.py:best_logprobs",
        "allowed[list(blocked)] = False",
        "pass",
        test="test_best.py::test_beside_numpy",
    ),
    Fault(
        "rows that lie apart are read as neighbours",
        "native/best.py:best_logprobs",
        "scores.stride(0)",
        "scores.shape[1]",
        test="test_best.py::test_rows_may_lie_apart_in_any_dtype",
    ),
]
