// The operator `heddle::few_rows` for steps that torch compiled: it is called with handles of tensors, through torch's C interface.

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>

extern "C" {

void heddle_product(int kind, int narrow, int narrow_bias, const void* x, const void* w, const void* scales, const void* bias,
                    void* y, int64_t n, int64_t F, int64_t D, int threads);

AOTITorchError aoti_torch_cpu_few_rows(AtenTensorHandle x, AtenTensorHandle weight, const AtenTensorHandle* scales,
                                       const AtenTensorHandle* bias, AtenTensorHandle* out) {
    int64_t *of_x = nullptr, *of_weight = nullptr;
    int32_t dtype = 0, of_bias = 0, of_numbers = 0;
    void *from = nullptr, *by = nullptr, *scaled = nullptr, *added = nullptr, *to = nullptr;
    if (aoti_torch_get_sizes(x, &of_x) || aoti_torch_get_sizes(weight, &of_weight)) return AOTI_TORCH_FAILURE;
    if (aoti_torch_get_dtype(x, &dtype) || aoti_torch_get_dtype(weight, &of_numbers)) return AOTI_TORCH_FAILURE;
    if (aoti_torch_get_data_ptr(x, &from) || aoti_torch_get_data_ptr(weight, &by)) return AOTI_TORCH_FAILURE;
    if (scales && aoti_torch_get_data_ptr(*scales, &scaled)) return AOTI_TORCH_FAILURE;
    if (bias && (aoti_torch_get_data_ptr(*bias, &added) || aoti_torch_get_dtype(*bias, &of_bias))) return AOTI_TORCH_FAILURE;
    int64_t sizes[] = {of_x[0], of_weight[0]}, strides[] = {of_weight[0], 1};
    if (aoti_torch_empty_strided(2, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, out)) return AOTI_TORCH_FAILURE;
    if (aoti_torch_get_data_ptr(*out, &to)) return AOTI_TORCH_FAILURE;
    int32_t narrow = aoti_torch_dtype_bfloat16();
    int kind = of_numbers == aoti_torch_dtype_int8() ? 2 : of_numbers == aoti_torch_dtype_uint8() ? 3 : of_numbers == narrow;
    heddle_product(kind, dtype == narrow, bias && of_bias == narrow, from, by, scaled, added, to, of_x[0], of_weight[0], of_x[1],
                   0);
    return AOTI_TORCH_SUCCESS;
}
}
