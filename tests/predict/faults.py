"""Planted faults that tests of `predict` must notice."""

from tests.planting import Fault

FAULTS = [
    Fault("texts lose their frame when they are classified", "predict/rows.py:frame_rows",
          "*frame.row(records, number)", "records.columns['text'][number].tolist(), 0",
          test="test_classify.py"),
    Fault("all texts of a pair are of one type", "predict/rows.py:_hidden",
          "int(place >= row.second)", "0",
          test="test_classify.py::test_what_predicts_is_what_training_scores"),
    Fault("results in the order of their lengths", "predict/classify.py:_predictions",
          "scores[number]", "scores[numbers.index(number)]",
          test="test_classify.py::test_texts_in_a_batch_have_the_probabilities_that_they_have_alone"),
    Fault("a published frame is ignored", "weights/special_tokens.py:around_texts",
          "tokenizer is not None and any(tokenizer.around)", "False",
          test="test_classify.py::test_a_published_tokenizer_frames_texts_as_it_says"),
    Fault("a mask beside blanks of its own", "text/masking.py:masked_ids",
          "pairwise(words)", "()",
          test="test_fill.py::test_a_text_with_a_mask_is_the_row_that_training_hides_a_token_in"),
    Fault("masks are filled in from the left", "predict/fill.py:_fill",
          "int(best.argmax())", "0",
          test="test_fill.py::test_several_masks_are_filled_in_one_by_one"),
    Fault("a context for the harness is a token too short", "predict/lm_eval.py:HarnessModel._loglikelihood_tokens",
          "max_length - 1", "max_length",
          test="test_lm_eval.py::test_log_probabilities_are_those_of_the_harness"),
    Fault("windows of the harness overlap by a token", "predict/lm_eval.py:HarnessModel.loglikelihood_rolling",
          "context_len=1", "context_len=2",
          test="test_lm_eval.py::test_log_probabilities_are_those_of_the_harness"),
    Fault("texts for the harness in another order", "predict/lm_eval.py:HarnessModel.generate_until",
          "texts[number]", "texts[order.index(number)]",
          test="test_lm_eval.py::test_texts_are_those_of_the_harness"),
]  # fmt: skip
