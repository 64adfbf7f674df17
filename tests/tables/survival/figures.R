# Writes the rows and the figures that test_figures.py compares with.
# Run in this folder: Rscript figures.R (R 4.2.2, survival 3.5-3).
library(survival)

figures <- list()
number <- function(x) ifelse(is.finite(x), sprintf("%.17g", x), "null")
listed <- function(x) sprintf("[%s]", paste(number(x), collapse = ", "))

case <- function(name, rows, columns, weighted = FALSE) {
  write.csv(rows, paste0(name, ".csv"), row.names = FALSE, quote = FALSE)
  entry <- if ("entry" %in% names(rows)) "entry, " else ""
  right <- paste(c(columns, "strata(site)"), collapse = " + ")
  formula <- as.formula(sprintf("Surv(%stime, event) ~ %s", entry, right))
  for (ties in c("efron", "breslow")) for (w in if (weighted) c(FALSE, TRUE) else FALSE) {
    rows$w <- if (w) rows$weight else 1
    fit <- coxph(formula, rows, weights = w, ties = ties, robust = FALSE, model = TRUE,
                 control = coxph.control(eps = 1e-11, iter.max = 50))
    curve <- survfit(fit, rows[1, ], ctype = 1, stype = 2, se.fit = FALSE)
    parts <- c(
      sprintf('"rows": "%s"', name), sprintf('"ties": "%s"', ties),
      sprintf('"weighted": %s', if (w) "true" else "false"),
      sprintf('"columns": ["%s"]', paste(columns, collapse = '", "')),
      sprintf('"coef": %s', listed(coef(fit))), sprintf('"variance": %s', listed(fit$var)),
      sprintf('"loglik": %s', listed(fit$loglik)), sprintf('"events": %d', fit$nevent),
      sprintf('"concordance": %s', number(concordance(fit)$concordance)),
      sprintf('"times": %s', listed(curve$time)), sprintf('"survival": %s', listed(curve$surv)))
    figures[[length(figures) + 1]] <<- sprintf("{%s}", paste(parts, collapse = ",\n  "))
  }
}

data(cancer, package = "survival")
own <- data.frame(site = lung$inst, time = lung$time, event = lung$status - 1, age = lung$age,
                  sex = lung$sex, ecog = lung$ph.ecog)
case("lung", own[complete.cases(own), ], c("age", "sex", "ecog"))

own <- data.frame(site = as.integer(veteran$celltype) - 1, time = veteran$time,
                  event = veteran$status, trt = veteran$trt, karno = veteran$karno,
                  age = veteran$age, weight = 0.5 + (seq_len(nrow(veteran)) %% 4) / 2)
case("veteran", own, c("trt", "karno", "age"), weighted = TRUE)

own <- data.frame(site = as.integer(factor(cgd$center)), entry = cgd$tstart, time = cgd$tstop,
                  event = cgd$status, treat = as.integer(cgd$treat == "rIFN-g"), age = cgd$age,
                  steroids = cgd$steroids, weight = 1 + (cgd$id %% 3))
case("cgd", own, c("treat", "age", "steroids"), weighted = TRUE)

set.seed(61)
for (sites in c(3, 20)) {
  n <- 300
  site <- rep(seq_len(sites), length.out = n)
  dose <- rnorm(n); old <- rbinom(n, 1, 0.3); mark <- round(rnorm(n, 2000, 5))
  hazard <- 0.05 * exp(0.6 * dose - 0.5 * old + 0.04 * (mark - 2000)) * site^0.2
  entry <- floor(runif(n, 0, 8)); time <- entry + ceiling(rexp(n, hazard))
  stop <- entry + ceiling(runif(n, 5, 30))
  own <- data.frame(site, entry, time = pmin(time, stop), event = as.integer(time <= stop),
                    dose = round(dose, 3), old, mark, weight = round(runif(n, 0.2, 3), 2))
  case(sprintf("sites%d", sites), own, c("dose", "old", "mark"), weighted = TRUE)
}
writeLines(sprintf("[%s]", paste(figures, collapse = ",\n")), "figures.json")
